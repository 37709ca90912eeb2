"""The folder that the audit puts first on PYTHONPATH. It has `sitecustomize`, which Python imports at its start."""
