"""The built-in figures that are plugins, one class per file."""
