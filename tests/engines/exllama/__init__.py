"""Engines exllamav2 and exllamav3: figures worked out from their sources."""
