"""The pytest front end."""
