"""The backends of dist_testing. Python reads the same table as `dist_testing/backends.json`."""

load("//backends:declare.bzl", "FEATURES", "VENDORS")
load("//backends/cuda_gloo:backend.bzl", "CUDA_GLOO")
load("//backends/fake:backend.bzl", "FAKE")
load("//backends/gloo:backend.bzl", "GLOO")
load("//backends/gloo_nccl:backend.bzl", "GLOO_NCCL")
load("//backends/mpi:backend.bzl", "MPI")
load("//backends/nccl:backend.bzl", "NCCL")
load("//backends/nccl2:backend.bzl", "NCCL2")
load("//backends/nccl_lazy:backend.bzl", "NCCL_LAZY")
load("//backends/nccl_legacy:backend.bzl", "NCCL_LEGACY")
load("//backends/rccl:backend.bzl", "RCCL")
load("//backends/threaded:backend.bzl", "THREADED")
load("//backends/ucc:backend.bzl", "UCC")
load("//backends/xccl:backend.bzl", "XCCL")

def _by_name(declared):
    """Arranges declarations by name.

    Args:
        declared: A list of declarations.

    Returns:
        A dict from the name to the declaration.
    """
    table = {}
    for backend in declared:
        if backend["name"] in table:
            fail("//backends: two folders declare \"{}\".".format(backend["name"]))
        table[backend["name"]] = backend
    return table

# Name -> declaration (declare.bzl explains the keys).
BACKENDS = _by_name([
    CUDA_GLOO,
    FAKE,
    GLOO,
    GLOO_NCCL,
    MPI,
    NCCL,
    NCCL2,
    NCCL_LAZY,
    NCCL_LEGACY,
    RCCL,
    THREADED,
    UCC,
    XCCL,
])

# What Python needs of this folder. Only builds need the labels of a backend's libraries.
TABLE = {
    "backends": {
        name: {key: value for key, value in backend.items() if key != "deps"}
        for name, backend in BACKENDS.items()
    },
    "features": FEATURES,
    "vendors": VENDORS,
}
