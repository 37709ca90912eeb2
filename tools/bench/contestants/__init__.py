"""What the benches run: one process per module here, each with the same cases, taking turns (see `turns`)."""
