"""The program front end: a user's own script runs on every rank, and its exit code is the rank's result."""
