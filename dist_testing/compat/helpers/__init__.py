"""Functions that a distributed test calls: stores, devices, limits, environments, inputs, models.

No module imports torch before a function needs it, except `models`, whose classes are torch modules. `dist_testing`
re-exports the names that belong to the public API.
"""
