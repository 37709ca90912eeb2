"""The private part of JAX, where its test harness is."""
