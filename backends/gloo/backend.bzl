"""Gloo on CPU tensors: the default backend, in every build of torch."""

load("//backends:declare.bzl", "declare_backend")

GLOO = declare_backend(
    name = "gloo",
    torch_backend = "gloo",
    device = "cpu",
    device_default = True,
    # To destroy a gloo group takes a rank 20 to 40 ms, nearly all of it waiting for the 10 ms ticks of gloo's own loop.
    # The kernel closes the same connections in microseconds when the process ends.
    ends_with_process = True,
    features = [
        "coalesced_all_reduce",
        "cpu_tensors",
        "monitored_barrier",
        "moves_data",
        "recv_any_source",
    ],
    records_calls = True,
)
