"""Remote executors: the properties by which each kind knows a pool and a number of GPUs, and the pool of a target.

No name is portable, and a wrong name is not an error everywhere: with NativeLink an action with an unknown property
waits forever, Buildbarn refuses it. So the library sets only properties that the kind understands, and only on the action that
runs the test.
"""

load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# Of each kind, the property that names the pool and the property that counts GPUs; "" if there is none.
#
# buildbarn: a worker takes an action whose properties are all equal to its own, so the library sends the pool's
#   `properties` and no others (github.com/buildbarn/bb-remote-execution, "platform properties").
# buildbuddy: github.com/buildbuddy-io/buildbuddy, docs/rbe-pools.md ("Pool"); `resources:<name>` is
#   a part of an executor's own, enterprise/server/remote_execution/platform/platform.go.
# buildgrid: workers are matched by the keys listed in its dynamic-property-set; "Pool" has to be one.
# engflow: docs.engflow.com/re/config/pools.html; other properties do not choose a worker.
# nativelink: every name is the scheduler's own choice. `gpu_count` is the one in its examples, as a "minimum", which is
#   taken from the worker while the action runs (docs.nativelink.com, "Platform properties").
KINDS = {
    "buildbarn": struct(gpus = "", pool = ""),
    "buildbuddy": struct(gpus = "resources:gpu", pool = "Pool"),
    "buildgrid": struct(gpus = "", pool = "Pool"),
    "engflow": struct(gpus = "", pool = "Pool"),
    "nativelink": struct(gpus = "gpu_count", pool = ""),
}

def pool_for(pools, vendor, gpus, archs):
    """Chooses a pool.

    Args:
        pools: Declared pools: dicts with "name", "gpus", "vendor", "gpu_arch" and "properties".
        vendor: Maker of the GPUs; "" for a target without.
        gpus: GPUs that the target needs.
        archs: Architectures that the target can use; empty for any.

    Returns:
        The smallest pool that has enough, so that larger ones stay free; the first declared one of equally small pools;
        None if there is none.
    """
    best = None
    for pool in pools:
        fits = pool["vendor"] == vendor and pool["gpus"] >= gpus and (not archs or pool["gpu_arch"] in archs)
        if fits and (best == None or pool["gpus"] < best["gpus"]):
            best = pool
    return best

def largest_pools(pools):
    """Looks up the largest pool of each vendor.

    Args:
        pools: Declared pools.

    Returns:
        A dict from the vendor to the pool's GPUs.
    """
    largest = {}
    for pool in pools:
        if pool["gpus"]:
            largest[pool["vendor"]] = max(pool["gpus"], largest.get(pool["vendor"], 0))
    return largest

def test_exec_properties(executors, vendor, gpus, archs):
    """Computes the properties by which the action of a test reaches its pool.

    Args:
        executors: The declarations of MODULE.bazel: a dict with "kind" and "pools".
        vendor: Maker of the GPUs; "" for a target without.
        gpus: GPUs that the target needs.
        archs: Architectures that the target can use; empty for any.

    Returns:
        A dict whose keys begin with `test.`; empty if no declared pool fits.
    """
    pool = pool_for(executors["pools"], vendor, gpus, archs)
    if pool == None:
        return {}
    names = KINDS[executors["kind"]]
    properties = dict(pool["properties"])
    if names.pool:
        properties[names.pool] = pool["name"]
    if names.gpus and gpus:
        properties[names.gpus] = str(gpus)
    return {"test." + name: value for name, value in properties.items()}

def capacity_text(target, vendor, gpus, archs, pools):
    """Writes the error text for a target that no pool can run."""
    declared = [
        "\"{}\" ({} {}{})".format(pool["name"], pool["gpus"], pool["vendor"], " " + pool["gpu_arch"] if pool["gpu_arch"] else "")
        for pool in pools
        if pool["gpus"]
    ]
    return ("{}: needs {} GPU(s) of {}{}, and no declared pool has them.\n" +
            "Declared in MODULE.bazel: {}. On a remote executor the test would never start.\n" +
            "Lower its world_size or gpus_per_rank, or declare {} with executors.pool().").format(
        target,
        gpus,
        vendor,
        " with architecture " + " or ".join(archs) if archs else "",
        ", ".join(declared) if declared else "no pool with GPUs",
        "such a pool (gpus, gpu_arch)" if archs else "a larger pool",
    )
