"""Tests of attached worlds with real launchers."""
