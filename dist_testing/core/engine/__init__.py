"""Runs cases for the runner: starts worlds, keeps time, judges, reports, cleans up. No rank runs this code."""
