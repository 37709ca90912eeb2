"""What runs inside a rank. Few imports on purpose: every rank pays for them."""
