"""The tags of a distributed test, by which targets are queried, filtered and scheduled."""

load("//dist_testing/private:gpus.bzl", "CUMULATIVE_STEPS")

# Computed from the other arguments. `cpu:<n>` is not among them: it is Bazel's own, and who writes it
# knows better than we do how busy the ranks are.
_RESERVED = ["dist", "gpu", "multi_gpu"]
_RESERVED_PREFIXES = [
    "backend:",
    "gpus:",
    "gpus_ge_",
    "requires-gpu-",
    "resources:gpu:",
    "world_size:",
]

def is_reserved_tag(tag):
    """Returns whether a tag is one that dist_py_test sets and a user may not."""
    return tag in _RESERVED or any([tag.startswith(prefix) for prefix in _RESERVED_PREFIXES])

# What Bazel takes for a number of CPUs, and refuses twice.
_CPU_PREFIXES = ["cpu:", "resources:cpu:"]

def cpu_tags(tags):
    """Returns those of a list of tags that ask Bazel for CPUs."""
    return [tag for tag in tags if any([tag.startswith(prefix) for prefix in _CPU_PREFIXES])]

def dist_tags(*, backend, world_sizes, gpus, user_tags):
    """Computes the tags of a target.

    Args:
        backend: Declaration of the backend.
        world_sizes: Ranks per case, one or more.
        gpus: GPUs of the largest world.
        user_tags: Added. A number of CPUs among them takes the place of ours.

    Returns:
        A sorted list of strings, each once.
    """
    tags = ["dist", "backend:" + backend["name"]] + user_tags
    tags += ["world_size:{}".format(size) for size in world_sizes]
    if not cpu_tags(user_tags):
        # One CPU per rank. Bazel runs a target that asks for more than there are alone.
        tags.append("cpu:{}".format(max(world_sizes)))
    if gpus:
        requires = "requires-gpu-" + backend["vendor"]
        tags += [
            "gpu",
            "gpus:{}".format(gpus),
            # Without a number for executors that know the plain tag only.
            requires,
            "{}:{}".format(requires, gpus),
            "resources:gpu:{}".format(gpus),
        ]
        tags += ["gpus_ge_{}".format(step) for step in CUMULATIVE_STEPS if step <= gpus]
        if gpus >= 2:
            tags.append("multi_gpu")
    return sorted({tag: None for tag in tags})
