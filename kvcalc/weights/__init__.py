"""Weights: what of a checkpoint lies on each GPU, in the formats that it is stored and run in."""
