"""The front end of `dist_testing.run`: it calls a function of any program on every rank of a fresh world."""
