"""Cases that are known to fail run without deciding about the run, until a date. See README.md."""
