"""Gloo on CPU tensors: the default, in every build of torch."""

load("//backends:declare.bzl", "declare_backend")

GLOO = declare_backend(
    name = "gloo",
    torch_backend = "gloo",
    device = "cpu",
    features = [
        "cpu_tensors",
        "monitored_barrier",
        "moves_data",
        "recv_any_source",
    ],
)
