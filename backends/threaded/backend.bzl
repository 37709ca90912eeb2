"""Threaded: ranks are threads of one process, and their group moves tensors between them. The library's own backend."""

load("//backends:declare.bzl", "declare_backend")

THREADED = declare_backend(
    name = "threaded",
    torch_backend = "threaded",
    device = "cpu",
    features = [
        "coalesced_all_reduce",
        "coalescing",
        "cpu_tensors",
        "moves_data",
        "needs_no_gloo",
        "recv_any_source",
        "uneven_gather",
    ],
    in_process = True,
    register_module = "dist_testing.threaded.group",
)
