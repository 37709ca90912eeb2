"""Error texts of dist_py_test about names and files, and values that are nearly wrong and right."""

load("@bazel_skylib//lib:partial.bzl", "partial")
load("@bazel_skylib//lib:unittest.bzl", "unittest")
load(
    "//dist_testing/private:validate_names.bzl",  # buildifier: disable=bzl-visibility
    "name_problems",
    "srcs_problems",
    "timings_problems",
    "wildcard_problems",
)
load(":problem_asserts.bzl", "assert_accepted", "assert_refused")

def _srcs_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, srcs_problems(["a.py", ":b.py", "//c:d.py"]))
    assert_refused(env, srcs_problems([]), "srcs = []", "at least one Python file")
    assert_refused(env, srcs_problems(None), "srcs = None")
    assert_refused(env, srcs_problems("a.py"), "srcs = \"a.py\"", "A list")
    assert_accepted(env, srcs_problems(select({"//conditions:default": []})))
    assert_refused(env, srcs_problems({"a.py": "b.py"}), "srcs = {\"a.py\": \"b.py\"}\n")
    assert_refused(env, srcs_problems(["a.py", "b.txt"]), "\"b.txt\" is not a Python file", "data files in data")
    assert_refused(env, srcs_problems([":library"]), "\":library\" is not a Python file", "other targets in deps")
    assert_refused(env, srcs_problems([3]), "3 is not a Python file")
    assert_accepted(env, srcs_problems([Label(":cases.py")]))
    return unittest.end(env)

srcs_test = unittest.make(_srcs_test_impl)

def _name_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, name_problems("all_reduce"))
    for wrong in ["", None, 3]:
        assert_refused(env, name_problems(wrong), "name = {}\n".format(repr(wrong)), "not empty")

    for wildcard in ["all", "*", "all-targets"]:
        assert_accepted(env, name_problems(wildcard))
        assert_refused(env, wildcard_problems(wildcard), "name = \"{}\"\n".format(wildcard), "Choose another")
    assert_accepted(env, wildcard_problems("all_reduce"))
    return unittest.end(env)

name_test = unittest.make(_name_test_impl)

def _timings_test_impl(ctx):
    env = unittest.begin(ctx)
    for right in [None, "t.json", ":t.json", "//a:t t$1.json", Label(":cases.py")]:
        assert_accepted(env, timings_problems(right))
    for wrong in [5, True, "", [], ["t.json"], {}]:
        assert_refused(env, timings_problems(wrong), "timings = {}\n".format(repr(wrong)), "the one file", "or drop it")
    assert_refused(env, timings_problems(select({"//conditions:default": "t.json"})), "timings = select(...)\n")
    return unittest.end(env)

timings_test = unittest.make(_timings_test_impl)

def validate_names_test_suite(*, name):
    """Declares the tests of this file and a suite of them.

    Args:
        name: Name of the suite.
    """
    tests = [
        name_test,
        srcs_test,
        timings_test,
    ]
    unittest.suite(name, *[partial.make(test, size = "small") for test in tests])
