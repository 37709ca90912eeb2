"""XCCL on XPU tensors: only in torch's builds for Intel GPUs."""

load("//backends:declare.bzl", "declare_backend")

XCCL = declare_backend(
    name = "xccl",
    torch_backend = "xccl",
    device = "xpu",
    features = [
        "coalescing",
        "moves_data",
        "xpu_tensors",
    ],
    gpus_per_rank = 1,
    vendor = "intel",
)
