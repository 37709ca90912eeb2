"""Gloo on CUDA tensors: for code that must work where NCCL is not to be used."""

load("//backends:declare.bzl", "declare_backend")

CUDA_GLOO = declare_backend(
    name = "cuda_gloo",
    torch_backend = "gloo",
    device = "cuda",
    ends_with_process = True,
    features = [
        "cpu_tensors",
        "monitored_barrier",
        "moves_data",
        "recv_any_source",
    ],
    gpus_per_rank = 1,
    records_calls = True,
    shares_gpus = True,
    vendor = "nvidia",
)
