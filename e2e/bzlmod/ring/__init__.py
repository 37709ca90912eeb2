"""A backend of this consumer, with its plug-in and its tests."""
