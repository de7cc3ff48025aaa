"""Commands of every engine, read as the engine reads them."""
