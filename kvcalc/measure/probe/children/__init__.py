"""Engines asked in a process of their own: an engine that aborts takes no more than that with it.

Each module reads a question as JSON from stdin and prints its answer as the last line of stdout.
"""
