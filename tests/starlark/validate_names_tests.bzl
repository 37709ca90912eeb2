"""Errors of dist_py_test about names and files: every text, and the nearest values that are right."""

load("@bazel_skylib//lib:partial.bzl", "partial")
load("@bazel_skylib//lib:unittest.bzl", "unittest")
load(
    "//dist_testing/private:validate_names.bzl",  # buildifier: disable=bzl-visibility
    "collision_problems",
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
    assert_refused(env, srcs_problems(select({"//conditions:default": ["a.py"]})), "srcs = select(...)\n", "may be a select()")
    assert_refused(env, srcs_problems({"a.py": "b.py"}), "srcs = {\"a.py\": \"b.py\"}\n")
    assert_refused(env, srcs_problems(["a.py", "b.txt"]), "\"b.txt\" is not a Python file", "data files in data")
    assert_refused(env, srcs_problems([":library"]), "\":library\" is not a Python file", "other targets in deps")
    assert_refused(env, srcs_problems([3]), "3 is not a Python file")
    for right in ["@//a:b.py", "@@//a:b.py", "@r+1~2//:b.py", "//a/b.py", "a/b.py", "..b.py", "a b$(1).py"]:
        assert_accepted(env, srcs_problems([right]))
    assert_accepted(env, srcs_problems([Label(":cases.py")]))
    for wrong, fault in [
        ("./a.py", "a part \".\""),
        ("../a.py", "a part \"..\""),
        ("/a.py", "a slash at an end"),
        ("//:::a.py", "\":\""),
        ("a:b.py", "\":\""),
        ("a\\b.py", "\"\\\\\""),
        ("a\nb.py", "a control character"),
        ("a//b.py", "\"//\""),
        ("///a.py", "a slash at an end"),
        ("//a/:b.py", "a slash at an end"),
        ("//a/../b.py", "a part \"..\""),
        ("//a/...:b.py", "a package of dots"),
        ("//\303\244:b.py", "a package with letters beyond ASCII"),
        ("@@@r//:a.py", "a repository \"@r\""),
        ("@r s//:a.py", "a repository \"r s\""),
        ("@..//:a.py", "a repository \"..\""),
    ]:
        assert_refused(env, srcs_problems([wrong]), "{} is no label.\n".format(repr(wrong)), "no label has {}.\n".format(fault))
    return unittest.end(env)

srcs_test = unittest.make(_srcs_test_impl)

def _name_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, name_problems("all_reduce"))
    for wrong in ["", None, 3]:
        assert_refused(env, name_problems(wrong), "name = {}\n".format(repr(wrong)), "not empty")

    # Bazel accepts every other character of ASCII.
    for right in ["a/b", "a b", "...", "a.b", "!%-@^_`\"#$&'()*+,;<=>?[]{|}~", "\303\244"]:
        assert_accepted(env, name_problems(right))
    for wrong, fault in [
        ("a:b", "\":\""),
        ("a\\b", "\"\\\\\""),
        ("a//b", "\"//\""),
        ("../x", "a part \"..\""),
        ("a/.", "a part \".\""),
        ("/x", "a slash at an end"),
        ("x/", "a slash at an end"),
        ("a\nb", "a control character"),
        ("a\177", "a control character"),
    ]:
        assert_refused(env, name_problems(wrong), "name = {}\n".format(repr(wrong)), "takes none that has {}.\n".format(fault))
    for wildcard in ["all", "*", "all-targets"]:
        assert_accepted(env, name_problems(wildcard))
        assert_refused(env, wildcard_problems(wildcard), "name = \"{}\"\n".format(wildcard), "Choose another")
    assert_accepted(env, wildcard_problems("all_reduce"))
    return unittest.end(env)

name_test = unittest.make(_name_test_impl)

def _collision_test_impl(ctx):
    env = unittest.begin(ctx)
    names = {"a": "the suite", "a_gloo": "the tests"}
    assert_accepted(env, collision_problems(names, {}.get))
    assert_refused(
        env,
        collision_problems(names, {"a_gloo": "py_library"}.get),
        ":a_gloo is there already, a py_library.",
        "name is needed for the tests",
        "Rename",
    )
    return unittest.end(env)

collision_test = unittest.make(_collision_test_impl)

def _timings_test_impl(ctx):
    env = unittest.begin(ctx)
    for right in [None, "t.json", ":t.json", "//a:t t$1.json", Label(":cases.py")]:
        assert_accepted(env, timings_problems(right))
    for wrong in [5, True, [], ["t.json"], {}]:
        assert_refused(env, timings_problems(wrong), "timings = {}\n".format(repr(wrong)), "the one file", "or drop it")
    assert_refused(env, timings_problems(select({"//conditions:default": "t.json"})), "timings = select(...)\n")
    for wrong, fault in [("", "nothing in it"), ("../t.json", "a part \"..\""), ("t(1).json", "brackets"), ("t).json", "brackets")]:
        assert_refused(env, timings_problems(wrong), "timings = \"{}\"\n".format(wrong), "may not have " + fault)
    assert_refused(env, timings_problems(Label(":t(1).json")), "may not have brackets")
    return unittest.end(env)

timings_test = unittest.make(_timings_test_impl)

def validate_names_test_suite(*, name):
    """Declares the tests of this file and a suite of them.

    Args:
        name: Name of the suite.
    """
    tests = [
        collision_test,
        name_test,
        srcs_test,
        timings_test,
    ]
    unittest.suite(name, *[partial.make(test, size = "small") for test in tests])
