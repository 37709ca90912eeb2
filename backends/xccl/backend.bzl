"""XCCL on XPU tensors: only in torch's builds for Intel GPUs."""

load("//backends:declare.bzl", "declare_backend")

XCCL = declare_backend(
    name = "xccl",
    torch_backend = "xccl",
    device = "xpu",
    device_default = True,
    features = [
        "coalesced_all_reduce",
        "coalescing",
        "moves_data",
        "needs_no_gloo",
    ],
    gpus_per_rank = 1,
    vendor = "intel",
)
