"""UCC on CPU tensors: only in builds of torch that were compiled with it."""

load("//backends:declare.bzl", "declare_backend")

UCC = declare_backend(
    name = "ucc",
    torch_backend = "ucc",
    device = "cpu",
    features = [
        "cpu_tensors",
        "moves_data",
        "needs_no_gloo",
    ],
)
