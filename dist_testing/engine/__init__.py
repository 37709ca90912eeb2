"""The runner: starts worlds, keeps time, judges, reports, cleans up. Nothing here runs on a rank."""
