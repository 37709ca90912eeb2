"""This consumer's own backend: a process group in Python."""

load("@dist_testing//dist_testing:backends.bzl", "declare_backend")

RING = declare_backend(
    name = "ring",
    torch_backend = "ring",
    device = "cpu",
    features = ["cpu_tensors", "moves_data", "needs_no_gloo"],
    register_module = "ring.process_group",
    deps = ["//ring:process_group"],
    timeout_s = 60,
    env = {"RING_GREETING": "hello"},
)
