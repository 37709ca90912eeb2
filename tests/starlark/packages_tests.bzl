"""The packages that MODULE.bazel gives to the library."""

load("@bazel_skylib//lib:partial.bzl", "partial")
load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load("//dist_testing/private:packages_repo.bzl", "chosen_packages")  # buildifier: disable=bzl-visibility

_HUB = Label("@rules_python")

def _tag(hub = None, torch = None):
    return {"hub": hub, "torch": torch}

def _chosen_packages_test_impl(ctx):
    env = unittest.begin(ctx)
    torch = Label("//third_party/torch")
    root = _HUB.same_package_label("BUILD.bazel")
    asserts.equals(env, ({}, []), chosen_packages([]))
    asserts.equals(env, ({"hub": root, "torch": torch}, []), chosen_packages([_tag(hub = _HUB, torch = torch)]))
    asserts.equals(env, ({"hub": None, "torch": torch}, []), chosen_packages([_tag(torch = torch)]))
    for tags, expected in [
        ([_tag(hub = _HUB)] * 2, ["dist_testing.packages() is there 2 times."]),
        # A name without "@" is a target of the repository that has the tag.
        ([_tag(hub = Label("//:pypi"))], ["packages(hub = \"pypi\"): that is no other repository.", "Write hub = \"@pypi\""]),
    ]:
        problems = chosen_packages(tags)[1]
        asserts.equals(env, 1, len(problems))
        asserts.equals(env, 3, len(problems[0].split("\n")), "lines of " + problems[0])
        for part in expected:
            asserts.true(env, part in problems[0], "{} is not in: {}".format(repr(part), problems[0]))
    return unittest.end(env)

chosen_packages_test = unittest.make(_chosen_packages_test_impl)

def packages_test_suite(*, name):
    """Declares the tests of this file and a suite of them.

    Args:
        name: Name of the suite.
    """
    unittest.suite(name, partial.make(chosen_packages_test, size = "small"))
