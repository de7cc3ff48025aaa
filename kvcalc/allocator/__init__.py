"""Allocators: free memory and its holes, and what an out-of-memory text says of them."""
