"""Families by the kind of cache: `read_<family>` returns what each layer keeps."""
