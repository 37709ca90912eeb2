"""The tags of a distributed test, by which Bazel queries, filters and schedules targets."""

load("//dist_testing/private:gpus.bzl", "CUMULATIVE_STEPS")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# The macro computes these from other arguments. `cpu:<n>` is not among them: it is Bazel's own, and the
# author of a test knows better how busy its ranks are.
_RESERVED = ["dist", "gpu", "multi_gpu", "requires-netns"]
_RESERVED_PREFIXES = [
    "backend:",
    "gpu_arch:",
    "gpus:",
    "gpus_ge_",
    "nodes:",
    "requires-gpu-",
    "resources:gpu:",
    "world_size:",
]

# Bazel reads a number of CPUs in these, and refuses two of them.
_CPU_PREFIXES = ["cpu:", "resources:cpu:"]
_MEMORY_PREFIX = "resources:memory:"

# Memory of a test that does nothing but talk to its peers, in MB: of the runner with the fork server, and of each rank. Measured
# with torch 2.13 on gloo, rounded up; what processes share counts once. A rank on a GPU has the context of its device beside
# that, which is an estimate.
_RUNNER_MB = 250
_RANK_MB = {
    "fork": 15,
    "pool": 20,
    "spawn": 170,
    "thread": 1,
}
_GPU_RANK_MB = 1000

# Memory of the fork server for each of several worlds that run side by side.
_JOB_MB = 60

def is_reserved_tag(tag):
    """Says whether dist_py_test sets a tag, so that a user may not."""
    return tag in _RESERVED or any([tag.startswith(prefix) for prefix in _RESERVED_PREFIXES])

def dist_tags(*, backend, world_sizes, gpus, gpu_archs, isolation, jobs, nodes, user_tags):
    """Computes the tags of a target.

    Args:
        backend: Declaration of the backend.
        world_sizes: Ranks per case, one or more.
        gpus: GPUs of the largest world.
        gpu_archs: Architectures of GPUs that the tests can run on; empty for any.
        isolation: Name of the isolation.
        jobs: Worlds that run side by side.
        nodes: Simulated nodes of its worlds.
        user_tags: More tags. A number of CPUs or of megabytes among them replaces ours.

    Returns:
        A sorted list of strings without duplicates.
    """
    tags = ["dist", "backend:" + backend["name"]] + user_tags
    tags += ["world_size:{}".format(size) for size in world_sizes]
    if not [tag for tag in user_tags if any([tag.startswith(prefix) for prefix in _CPU_PREFIXES])]:
        # One CPU per rank, and one for all threads of an interpreter. Bazel runs a target that asks for more than there are
        # alone.
        tags.append("cpu:{}".format(jobs * (1 if isolation == "thread" else max(world_sizes))))
    if not [tag for tag in user_tags if tag.startswith(_MEMORY_PREFIX)]:
        rank_mb = _RANK_MB[isolation] + (_GPU_RANK_MB if gpus else 0)
        world_mb = max(world_sizes) * rank_mb
        jobs_mb = jobs * (_JOB_MB + world_mb) if jobs > 1 else world_mb
        tags.append("{}{}".format(_MEMORY_PREFIX, _RUNNER_MB + jobs_mb))
    if nodes > 1:
        # For executors, of which some do not let a test make network namespaces.
        tags += ["nodes:{}".format(nodes), "requires-netns"]
    if gpus:
        requires = "requires-gpu-" + backend["vendor"]
        tags += [
            "gpu",
            "gpus:{}".format(gpus),
            # In a sandbox a test sees neither who holds a GPU nor whose its memory is.
            "no-sandbox",
            # Without a number, for executors that know the plain tag only.
            requires,
            "{}:{}".format(requires, gpus),
            "resources:gpu:{}".format(gpus),
        ]
        tags += ["gpu_arch:" + arch for arch in gpu_archs]
        tags += ["gpus_ge_{}".format(step) for step in CUMULATIVE_STEPS if step <= gpus]
        if gpus >= 2:
            tags.append("multi_gpu")
    return sorted({tag: None for tag in tags})
