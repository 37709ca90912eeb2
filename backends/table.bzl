"""Every backend, once. Python reads the same table as `dist_testing/backends.json`."""

load("//backends/cuda_gloo:backend.bzl", "CUDA_GLOO")
load("//backends/fake:backend.bzl", "FAKE")
load("//backends/gloo:backend.bzl", "GLOO")
load("//backends/mpi:backend.bzl", "MPI")
load("//backends/nccl:backend.bzl", "NCCL")
load("//backends/threaded:backend.bzl", "THREADED")
load("//backends/ucc:backend.bzl", "UCC")
load("//backends/xccl:backend.bzl", "XCCL")

def _by_name(declared):
    table = {}
    for backend in declared:
        if backend["name"] in table:
            fail("//backends: two folders declare \"{}\".".format(backend["name"]))
        table[backend["name"]] = backend
    return table

# Name -> declaration (see declare.bzl for the keys).
BACKENDS = _by_name([
    CUDA_GLOO,
    FAKE,
    GLOO,
    MPI,
    NCCL,
    THREADED,
    UCC,
    XCCL,
])
