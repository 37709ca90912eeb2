"""Worlds whose ranks exist already, because torchrun has started them."""
