"""Checks the argument `jobs`. Every function returns a list of error texts (see problems.bzl)."""

load("//dist_testing/private:problems.bzl", "by_backend", "is_int", "problem", "shown")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# As in dist_testing/jobs/look_ahead.py.
MAX_JOBS = 64

def jobs_problems(jobs, backends, known):
    """Checks the argument `jobs`: None, an int, or a dict of int by backend.

    Args:
        jobs: The argument.
        backends: Names of the target's backends.
        known: All backends: name -> declaration.

    Returns:
        A list of error texts.
    """
    values, problems = by_backend("jobs", jobs, backends)
    for argument, value, backend in values:
        if not is_int(value) or value < 1 or value > MAX_JOBS:
            problems.append(problem(
                "{} = {}".format(argument, shown(value)),
                "It is the number of worlds that run side by side: a whole number from 1 to {}.".format(MAX_JOBS),
                "Use a number or a dict by backend, or drop it: then worlds run one after the other.",
            ))
        elif value > 1 and known[backend]["gpus_per_rank"]:
            problems.append(problem(
                "{} = {} with backend \"{}\"".format(argument, value, backend),
                "Bazel reserves the GPUs of one world for a target with GPUs, so no second world could run beside it.",
                "Use a dict that names the backends without GPUs only; shard_count spreads the cases of the others.",
            ))
    return problems
