"""Mechanics that the runner and the ranks share: messages, wire, shared memory, stacks, processes."""
