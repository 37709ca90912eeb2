"""What Bazel starts, and Bazel's test protocol."""
