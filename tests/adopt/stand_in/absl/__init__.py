"""What the adapter needs of absl."""
