"""Ways of making ranks. `wire` is what runner and template say to each other; one module per launcher."""
