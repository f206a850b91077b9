"""The built-in claims, one class per file: what growbench exists to decide."""
