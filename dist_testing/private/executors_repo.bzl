"""The repository that holds what MODULE.bazel declares about remote executors, and the checks of that."""

load("//backends:declare.bzl", "VENDORS")
load("//dist_testing/private:executors.bzl", "KINDS")
load("//dist_testing/private:gpus.bzl", "MAX_GPUS")
load("//dist_testing/private:problems.bzl", "choice_problems", "problem")

def _executors_repo_impl(repository_ctx):
    declared = {"kind": repository_ctx.attr.kind, "pools": json.decode(repository_ctx.attr.pools)}
    repository_ctx.file("BUILD.bazel", "exports_files([\"executors.bzl\"])\n")
    repository_ctx.file("executors.bzl", "\"\"\"What MODULE.bazel declares about remote executors.\"\"\"\n\nEXECUTORS = {}\n".format(
        repr(declared),
    ))

executors_repo = repository_rule(
    doc = "Writes `executors.bzl`. Without attributes it says that nothing was declared.",
    implementation = _executors_repo_impl,
    attrs = {
        "kind": attr.string(doc = "One of KINDS; empty if there are no executors."),
        "pools": attr.string(doc = "The pools, as JSON.", default = "[]"),
    },
)

def _pool_problems(pool, kind, others):
    subject = "executors.pool(name = \"{}\")".format(pool["name"])
    problems = []
    if not pool["name"]:
        problems.append(problem("executors.pool(name = \"\")", "A pool is told from others by its name.", "Name it."))
    if pool["gpus"] < 0 or pool["gpus"] > MAX_GPUS:
        problems.append(problem(
            "{}: gpus = {}".format(subject, pool["gpus"]),
            "It is the number of GPUs of one worker: 0 for a pool without, up to {}.".format(MAX_GPUS),
            "Correct it.",
        ))
    elif not pool["gpus"] and pool["vendor"]:
        problems.append(problem(
            "{}: vendor = \"{}\" without gpus".format(subject, pool["vendor"]),
            "The vendor is that of the GPUs, and a pool without gpus has none.",
            "Give the number of GPUs, or drop the vendor.",
        ))
    elif pool["gpus"] and pool["vendor"] not in VENDORS:
        problems += choice_problems(
            "{}: vendor".format(subject),
            pool["vendor"],
            VENDORS,
            "Targets are sent to pools with GPUs of their backend's vendor.",
        )
    for other in others:
        if other["name"] == pool["name"]:
            problems.append(problem(
                "{} is there twice.".format(subject),
                "Executors tell pools by their names.",
                "Drop or rename one.",
            ))
        elif (other["gpus"], other["vendor"]) == (pool["gpus"], pool["vendor"]):
            problems.append(problem(
                "{} and \"{}\" both have {} GPU(s){}.".format(
                    subject,
                    other["name"],
                    pool["gpus"],
                    " of " + pool["vendor"] if pool["vendor"] else "",
                ),
                "A target goes to the smallest pool that fits, and here two are equally small.",
                "Drop one. A target's own exec_properties may still name any pool.",
            ))
    names = KINDS[kind]
    for name in pool["properties"]:
        if name.startswith("test.") or name in (names.pool, names.gpus):
            problems.append(problem(
                "{}: properties has \"{}\".".format(subject, name),
                "That property, or the prefix, is set from the rest of the declaration.",
                "Drop it." if name in (names.pool, names.gpus) else "Write \"{}\".".format(name.removeprefix("test.")),
            ))
    if not names.pool and not pool["properties"] and not (names.gpus and pool["gpus"]):
        problems.append(problem(
            "{}: properties is empty.".format(subject),
            "{} has no property that names a pool, so nothing would lead a test there.".format(kind),
            "Give the properties that the workers of the pool announce, for example properties = {\"Pool\": \"large\"}.",
        ))
    return problems

def declared_executors_problems(kinds, pools):
    """Checks what MODULE.bazel declares.

    Args:
        kinds: Of each executors.remote(), the kind.
        pools: Of each executors.pool(), a dict.

    Returns:
        A list of texts.
    """
    if len(kinds) > 1:
        return [problem(
            "executors.remote() is there {} times: {}.".format(len(kinds), ", ".join(kinds)),
            "Tests are sent to executors of one kind, whose names of properties they carry.",
            "Keep one.",
        )]
    if not kinds:
        return [problem(
            "executors.pool(name = \"{}\") without executors.remote().".format(pools[0]["name"]),
            "The kind of executor says what properties are called.",
            "Add executors.remote(kind = ...), one of: {}.".format(", ".join(KINDS)),
        )] if pools else []
    problems = choice_problems("executors.remote(): kind", kinds[0], KINDS.keys(), "It says what properties are called.")
    if problems:
        return problems
    for index, pool in enumerate(pools):
        problems += _pool_problems(pool, kinds[0], pools[:index])
    return problems
