"""One file a family: `read(fields)` gives what each layer keeps, by the model's own code."""
