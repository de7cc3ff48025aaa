"""What a model's KV cache costs and wastes, to the byte, and what an engine makes of it."""

__version__ = "0.1.0"
