"""Numbers of a case, which must hold against a file; README.md has an overview."""
