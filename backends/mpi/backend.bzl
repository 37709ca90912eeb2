"""MPI on CPU tensors: only in builds of torch that were compiled with an MPI library."""

load("//backends:declare.bzl", "declare_backend")

MPI = declare_backend(
    name = "mpi",
    torch_backend = "mpi",
    device = "cpu",
    features = [
        "cpu_tensors",
        "moves_data",
        "needs_no_gloo",
        "recv_any_source",
    ],
)
