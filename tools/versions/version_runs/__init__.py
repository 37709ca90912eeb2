"""Runs this library's suites with other versions of torch and Python, and keeps the results as a table."""
