"""NCCL on CUDA tensors of NVIDIA's GPUs."""

load("//backends:declare.bzl", "declare_backend")

NCCL = declare_backend(
    name = "nccl",
    torch_backend = "nccl",
    device = "cuda",
    # Without the device NCCL guesses it at the first collective, and warns about that.
    binds_device = True,
    device_default = True,
    features = [
        "coalesced_all_reduce",
        "coalescing",
        "moves_data",
        "needs_no_gloo",
        "uneven_gather",
    ],
    gpus_per_rank = 1,
    shares_gpus = True,
    uses_nccl = True,
    vendor = "nvidia",
)
