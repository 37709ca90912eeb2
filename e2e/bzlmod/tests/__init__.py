"""This consumer's own package of that name; the library has a folder `tests`, too."""
