"""Runs a function (`dist_testing.run`) or a script on ranks."""
