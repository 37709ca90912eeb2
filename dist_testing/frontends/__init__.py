"""The front doors: how test code reaches the engine."""
