"""Threaded: ranks are threads of one process, and their group moves tensors between them. The library's own."""

load("//backends:declare.bzl", "declare_backend")

THREADED = declare_backend(
    name = "threaded",
    torch_backend = "threaded",
    device = "cpu",
    features = [
        "coalescing",
        "cpu_tensors",
        "cuda_tensors",
        "moves_data",
        "recv_any_source",
    ],
    isolations = ["thread"],
    register_module = "dist_testing.threaded.register",
)
