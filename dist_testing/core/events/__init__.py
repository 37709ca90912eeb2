"""Carries timestamped facts about a run to all sinks, in one stream."""
