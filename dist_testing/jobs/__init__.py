"""Worlds side by side: `--dist-jobs` runs several cases at once, each in a fork of the runner."""
