"""Workloads: the lengths of real requests, read from trace files or arrays."""
