"""Writes and checks the files by which a repository uses dist_testing."""
