"""Attached worlds: their ranks exist already, because torchrun has started them."""
