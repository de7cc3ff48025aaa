"""Engine mlx-lm against mlx-lm itself."""
