"""Reports: results in, text out. One file a format; nothing here decides an exit code."""
