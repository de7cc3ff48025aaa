"""Answers: the values that commands and the library return, and what makes them of plans."""
