"""Never run: this workspace is only queried."""
