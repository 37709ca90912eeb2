"""The macro for the WORKSPACE of a repository without modules (Bazel 7 with `--noenable_bzlmod`).

```starlark
load("@dist_testing//dist_testing:deps.bzl", "dist_testing_deps")

dist_testing_deps()
```
"""

load("@bazel_tools//tools/build_defs/repo:http.bzl", "http_archive")
load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//dist_testing/private:executors_repo.bzl", "executors_repo")
load("//dist_testing/private:host_facts.bzl", "host_facts_repo")
load("//dist_testing/private:packages_repo.bzl", "packages_repo")
load("//wheels/private:hub_repo.bzl", "names_repo")  # buildifier: disable=bzl-visibility

def dist_testing_deps():
    """Declares every repository that dist_testing needs, if no other one of that name is declared.

    The versions are those of MODULE.bazel. To keep your own version of rules_python, declare it before this call. Otherwise
    set rules_python up after it, as its documentation says: `py_repositories()`, and `pip_parse()` for the hub with torch.
    """
    maybe(
        http_archive,
        name = "bazel_skylib",
        sha256 = "bc283cdfcd526a52c3201279cda4bc298652efa898b10b4db0837dc51652756f",
        urls = [
            "https://mirror.bazel.build/github.com/bazelbuild/bazel-skylib/releases/download/1.7.1/bazel-skylib-1.7.1.tar.gz",
            "https://github.com/bazelbuild/bazel-skylib/releases/download/1.7.1/bazel-skylib-1.7.1.tar.gz",
        ],
    )
    maybe(
        http_archive,
        name = "platforms",
        sha256 = "218efe8ee736d26a3572663b374a253c012b716d8af0c07e842e82f238a0a7ee",
        urls = [
            "https://mirror.bazel.build/github.com/bazelbuild/platforms/releases/download/0.0.10/platforms-0.0.10.tar.gz",
            "https://github.com/bazelbuild/platforms/releases/download/0.0.10/platforms-0.0.10.tar.gz",
        ],
    )
    maybe(
        http_archive,
        name = "rules_python",
        sha256 = "4f7e2aa1eb9aa722d96498f5ef514f426c1f55161c3c9ae628c857a7128ceb07",
        strip_prefix = "rules_python-1.0.0",
        url = "https://github.com/bazelbuild/rules_python/releases/download/1.0.0/rules_python-1.0.0.tar.gz",
    )
    maybe(executors_repo, name = "dist_testing_executors")
    maybe(host_facts_repo, name = "dist_testing_host")

    # The flags of //dist_testing/config name the packages.
    maybe(packages_repo, name = "dist_testing_packages")

    # The extension for wheels needs modules; the flags exist without them, too.
    maybe(names_repo, name = "dist_testing_wheels")
