"""Growth strategies for growbench."""
