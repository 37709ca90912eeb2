"""NCCL on CUDA tensors."""

load("//backends:declare.bzl", "declare_backend")

NCCL = declare_backend(
    name = "nccl",
    torch_backend = "nccl",
    device = "cuda",
    features = [
        "coalescing",
        "cuda_tensors",
        "moves_data",
    ],
    gpus_per_rank = 1,
    vendor = "nvidia",
)
