"""Why ranks wait for each other, and which of their calls differ."""
