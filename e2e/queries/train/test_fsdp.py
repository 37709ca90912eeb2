"""Never run: the targets of this workspace are only asked about."""
