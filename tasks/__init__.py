"""Tasks, one plugin class per file: a file in this folder is a built-in."""
