"""Coverage for `bazel coverage`: measures the runner and all ranks, and writes one LCOV file for each target."""
