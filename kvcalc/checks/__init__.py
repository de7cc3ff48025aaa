"""Sizing checks: what a deployment must hold, and what stands in its way."""
