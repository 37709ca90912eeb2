"""Gloo on CPU tensors and NCCL on CUDA tensors in one group, as training programs use it."""

load("//backends:declare.bzl", "declare_backend")

GLOO_NCCL = declare_backend(
    name = "gloo_nccl",
    torch_backend = "cpu:gloo,cuda:nccl",
    device = "cuda",
    binds_device = True,
    features = [
        "coalesced_all_reduce",
        "coalescing",
        "cpu_tensors",
        "moves_data",
    ],
    gpus_per_rank = 1,
    shares_gpus = True,
    uses_nccl = True,
    vendor = "nvidia",
)
