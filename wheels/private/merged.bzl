"""The macro merged_site_packages."""

load("@rules_python//python:py_info.bzl", "PyInfo")
load("@rules_python//python:py_library.bzl", "py_library")
load(":texts.bzl", "user_label")
load(":visibility.bzl", "WHEELS")

visibility(WHEELS)

def _line_of_import(path):
    return "import\t" + path

def _merged_tree_impl(ctx):
    tree = ctx.actions.declare_directory(ctx.label.name)
    sources = [dep[PyInfo].transitive_sources for dep in ctx.attr.deps]
    files = depset(transitive = sources + [dep[DefaultInfo].default_runfiles.files for dep in ctx.attr.deps])
    workspace = ctx.workspace_name

    def line_of_file(file):
        path = file.short_path
        place = path[len("../"):] if path.startswith("../") else workspace + "/" + path
        return "file\t{}\t{}".format(place, file.path)

    listed = ctx.actions.args()
    listed.set_param_file_format("multiline")
    listed.use_param_file("%s", use_always = True)
    listed.add_all(depset(transitive = [dep[PyInfo].imports for dep in ctx.attr.deps]), map_each = _line_of_import)
    listed.add_all(files, map_each = line_of_file, allow_closure = True)
    first = ctx.actions.args()
    first.add(user_label(ctx.label).removesuffix(".site-packages"))
    first.add(tree.path)
    ctx.actions.run(
        outputs = [tree],
        inputs = files,
        arguments = [first, listed],
        executable = ctx.executable._merge,
        # The links lead to files of this machine, and a copy of them in a cache would be gigabytes.
        execution_requirements = {"local": "1"},
        mnemonic = "MergeSitePackages",
        progress_message = "Merging the wheels of %{label}",
    )
    return [DefaultInfo(files = depset([tree]), runfiles = ctx.runfiles([tree]))]

_merged_tree = rule(
    doc = "Links the files of installed wheels into one site-packages.",
    implementation = _merged_tree_impl,
    attrs = {
        "deps": attr.label_list(mandatory = True, providers = [PyInfo]),
        "_merge": attr.label(cfg = "exec", default = "//wheels:merge", executable = True),
    },
)

def merged_site_packages(*, name, deps, **kwargs):
    """Declares packages of a hub as one site-packages, in which libraries find each other as after `pip install`.

    It is for hubs of rules_python (`pip.parse`), where each package has a folder of its own: there a library of torch does not
    find those of NVIDIA's packages beside it. The folder holds links, so it takes no space. A test depends on it instead
    of the packages; beside it they would be there twice.

    Args:
        name: Name of the target.
        deps: The packages: `["@pypi//torch", "@pypi//pytest"]`. What they depend on is merged, too.
        **kwargs: More attributes, which go to `py_library` unchanged.
    """
    tree = name + ".site-packages"
    _merged_tree(
        name = tree,
        testonly = kwargs.get("testonly"),
        tags = ["manual"],
        visibility = ["//visibility:private"],
        deps = deps,
    )
    py_library(
        name = name,
        data = [":" + tree],
        imports = [tree],
        **kwargs
    )
