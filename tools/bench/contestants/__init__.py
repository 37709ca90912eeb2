"""The contestants of the benches: each module runs in a process of its own, with the same cases (see `turns`)."""
