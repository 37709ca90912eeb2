"""Reports of finished runs, for people. It needs Python, and jinja2 for the page: no torch, no pytest."""
