"""The repository with the remote executors of MODULE.bazel, and the checks of them."""

load("//backends:declare.bzl", "VENDORS")
load("//dist_testing/private:executors.bzl", "KINDS")
load("//dist_testing/private:gpu_archs.bzl", "GPU_ARCHS")
load("//dist_testing/private:gpus.bzl", "MAX_GPUS")
load("//dist_testing/private:problems.bzl", "choice_problems", "problem")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# $DIST_TESTING_EXECUTOR (user): with --repo_env: name of the remote executor (default: the first in MODULE.bazel).
EXECUTOR_VARIABLE = "DIST_TESTING_EXECUTOR"

def _executors_repo_impl(repository_ctx):
    declared = {"kind": repository_ctx.attr.kind, "pools": json.decode(repository_ctx.attr.pools)}
    repository_ctx.file("BUILD.bazel", "exports_files([\"executors.bzl\"])\n")
    repository_ctx.file("executors.bzl", "\"\"\"The remote executors of MODULE.bazel.\"\"\"\n\nEXECUTORS = {}\n".format(
        repr(declared),
    ))

executors_repo = repository_rule(
    doc = "Writes `executors.bzl`. Without attributes the file says that MODULE.bazel declares no executor.",
    implementation = _executors_repo_impl,
    attrs = {
        "kind": attr.string(doc = "One of KINDS; empty if there are no executors."),
        "pools": attr.string(doc = "The pools, as JSON.", default = "[]"),
    },
)

def _pool_problems(pool, kind, others):
    """Checks one pool of an executor against the pools that are declared before it; returns error texts."""
    subject = "executors.pool(name = \"{}\")".format(pool["name"])
    problems = []
    if not pool["name"]:
        problems.append(problem("executors.pool(name = \"\")", "Its name tells a pool from the others.", "Name it."))
    if pool["gpus"] < 0 or pool["gpus"] > MAX_GPUS:
        problems.append(problem(
            "{}: gpus = {}".format(subject, pool["gpus"]),
            "It is the number of GPUs of one worker: 0 for a pool without, up to {}.".format(MAX_GPUS),
            "Correct it.",
        ))
    elif not pool["gpus"] and pool["vendor"]:
        problems.append(problem(
            "{}: vendor = \"{}\" without gpus".format(subject, pool["vendor"]),
            "The vendor is the maker of the GPUs, and this pool has none.",
            "Give the number of GPUs, or drop the vendor.",
        ))
    elif pool["gpus"] and pool["vendor"] not in VENDORS:
        problems += choice_problems(
            "{}: vendor".format(subject),
            pool["vendor"],
            VENDORS,
            "A target goes to a pool with GPUs of its backend's vendor.",
        )
    elif pool["gpu_arch"] and not pool["gpus"]:
        problems.append(problem(
            "{}: gpu_arch = \"{}\" without gpus".format(subject, pool["gpu_arch"]),
            "It is the architecture of the GPUs, and this pool has none.",
            "Give the number of GPUs, or drop gpu_arch.",
        ))
    elif pool["gpu_arch"] and not GPU_ARCHS[pool["vendor"]]:
        problems.append(problem(
            "{}: gpu_arch = \"{}\" with vendor = \"{}\"".format(subject, pool["gpu_arch"], pool["vendor"]),
            "No target can ask for it: the library cannot tell models of that vendor apart.",
            "Drop it; targets name such a pool by their own exec_properties.",
        ))
    elif pool["gpu_arch"]:
        problems += choice_problems(
            "{}: gpu_arch".format(subject),
            pool["gpu_arch"],
            GPU_ARCHS[pool["vendor"]],
            "A target whose gpu_archs has the name can go to the pool.",
        )
    for other in others:
        if other["name"] == pool["name"]:
            problems.append(problem(
                "{} is there twice.".format(subject),
                "Executors tell pools by their names.",
                "Drop or rename one.",
            ))
        elif _need(other) == _need(pool):
            problems.append(problem(
                "{} and \"{}\" both have {} GPU(s){}.".format(
                    subject,
                    other["name"],
                    pool["gpus"],
                    " of " + " ".join([pool["vendor"], pool["gpu_arch"]]).strip() if pool["vendor"] else "",
                ),
                "A target goes to the smallest pool that fits, and here two are equally small.",
                "Drop one{}. A target's own exec_properties may still name any pool.".format(
                    ", or tell them apart by gpu_arch" if GPU_ARCHS.get(pool["vendor"]) else "",
                ),
            ))
    names = KINDS[kind]
    for name in pool["properties"]:
        if name.startswith("test.") or name in (names.pool, names.gpus):
            problems.append(problem(
                "{}: properties has \"{}\".".format(subject, name),
                "The library sets that property, or the prefix, from the rest of the declaration.",
                "Drop it." if name in (names.pool, names.gpus) else "Write \"{}\".".format(name.removeprefix("test.")),
            ))
    if not names.pool and not pool["properties"] and not (names.gpus and pool["gpus"]):
        problems.append(problem(
            "{}: properties is empty.".format(subject),
            "{} has no property that names a pool, so no test would go there.".format(kind),
            "List the properties that the workers of the pool announce, for example properties = {\"Pool\": \"large\"}.",
        ))
    return problems

def _need(pool):
    return pool["gpus"], pool["vendor"], pool["gpu_arch"]

def _remote_problems(remotes):
    """Checks the declarations of executors; returns error texts."""
    problems = []
    for index, remote in enumerate(remotes):
        subject = "executors.remote()" if len(remotes) == 1 else "executors.remote(name = \"{}\")".format(remote["name"])
        problems += choice_problems(
            subject + ": kind",
            remote["kind"],
            KINDS.keys(),
            "The names of properties depend on it.",
        )
        if remote["name"] in [other["name"] for other in remotes[:index]]:
            problems.append(problem(
                "{} is there twice.".format(subject),
                "Pools and {} tell executors by their names; the default is the kind.".format(EXECUTOR_VARIABLE),
                "Give each a name of its own.",
            ))
    return problems

def chosen_executor(remotes, pools, chosen):
    """Checks the declarations of MODULE.bazel, and chooses the executor whose pools the targets use.

    Args:
        remotes: A dict with "kind" and "name" for each executors.remote().
        pools: A dict for each executors.pool(); its "remote" may be empty if there is one executor.
        chosen: Name of the executor; "" for the first one.

    Returns:
        The kind of the executor, "" for none; a list of its pools; and a list of error texts.
    """
    names = [remote["name"] for remote in remotes]
    if not remotes and (pools or chosen):
        return "", [], [problem(
            "executors.pool(name = \"{}\") without executors.remote().".format(pools[0]["name"]) if pools else "{}={} without executors.remote().".format(EXECUTOR_VARIABLE, chosen),
            "The names of properties depend on the kind of executor.",
            "Add executors.remote(kind = ...), one of: {}.".format(", ".join(KINDS)),
        )]
    problems = _remote_problems(remotes)
    for pool in pools:
        if pool["remote"] or len(remotes) > 1:
            problems += choice_problems(
                "executors.pool(name = \"{}\"): remote".format(pool["name"]),
                pool["remote"],
                names,
                "Each pool belongs to one of the executors.",
            )
    if chosen:
        problems += choice_problems(EXECUTOR_VARIABLE, chosen, names, "It is the executor of this invocation.")
    if problems or not remotes:
        return "", [], problems
    own = {
        remote["name"]: [pool for pool in pools if pool["remote"] in ("", remote["name"])]
        for remote in remotes
    }
    for remote in remotes:
        for index, pool in enumerate(own[remote["name"]]):
            problems += _pool_problems(pool, remote["kind"], own[remote["name"]][:index])
    name = chosen or names[0]
    (remote,) = [remote for remote in remotes if remote["name"] == name]
    return remote["kind"], own[name], problems
