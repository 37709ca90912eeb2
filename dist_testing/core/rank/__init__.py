"""The code that runs inside a rank. It imports little, because every rank pays for its imports."""
