"""Plugins of pytest that run other projects' suites on the engine: `-p dist_testing.adopt.<name>`, no file changes."""
