"""The macro dist_test_suites."""

load("//backends:table.bzl", "BACKENDS")
load("//dist_testing/private:backends.bzl", "resolve_backends")
load("//dist_testing/private:labels.bzl", "user_label")
load("//dist_testing/private:problems.bzl", "fail_on", "problem")
load("//dist_testing/private:validate_names.bzl", "name_problems")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

_TAG = "backend:"

def _used_backends():
    """Lists the backends of the dist_py_test calls above, sorted, without those that are manual."""
    return sorted({
        tag.removeprefix(_TAG): None
        for rule in native.existing_rules().values()
        if "manual" not in rule.get("tags", ())
        for tag in rule.get("tags", ())
        if tag.startswith(_TAG)
    })

def dist_test_suites(*, name = "all", backends = None, visibility = None):
    """Declares a suite of the package's distributed tests for each backend, `<name>_<backend>`.

    `bazel test //model:all_gloo` then runs every test of that package with that backend, without those that are
    `manual`. The suites themselves are manual, so `//...` does not name a test twice.

    The call stands below the dist_py_test calls. It refuses a backend that none of them uses, because that suite would be
    empty.

    Args:
        name: First part of the suites' names.
        backends: Names of backends, or values of declare_backend. Default: all backends of the calls above, without
            manual tests.
        visibility: Of the suites.
    """
    fail_on("dist_test_suites in //" + native.package_name(), name_problems(name))
    used = _used_backends()
    problems = []
    if not used:
        problems.append(problem(
            "No dist_py_test that is not manual stands above this call.",
            "There is one suite for each backend that the package's tests use, and here they use none.",
            "Put it at the end of the BUILD file, or drop it.",
        ))
    elif backends != None:
        backends, _, problems = resolve_backends(backends, BACKENDS)
        if not problems:
            problems += [
                problem(
                    "backends = {}: no test above uses \"{}\", except manual ones.".format(repr(backends), backend),
                    "Its suite would be empty. The tests above use: {}.".format(", ".join(used)),
                    "Drop it, or put the call below the tests.",
                )
                for backend in backends
                if backend not in used
            ]
    fail_on("dist_test_suites " + user_label(native.package_relative_label(":" + name)), problems)
    for backend in backends or used:
        native.test_suite(
            name = "{}_{}".format(name, backend),
            # Without `tests`, a suite holds the package's tests that have its tags; "manual" does not filter.
            tags = [
                "manual",
                _TAG + backend,
            ],
            visibility = visibility,
        )
