"""Values and exact arithmetic: no files, no clock, no environment, no printing."""
