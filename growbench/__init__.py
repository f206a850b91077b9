"""Growth strategies for small language models, compared at matched size, budget and tuning effort."""

__version__ = "0.1.0"
