"""The spec of a target: an environment variable and a file for the runner, and a rule for queries."""

load("//dist_testing:providers.bzl", "DistTestInfo", "DistTestsInfo")
load("//dist_testing/private:gpus.bzl", "promise_variables")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# Version of the format. A runner refuses a newer one than its own.
SPEC_SCHEMA = 7

def spec_variable(test, *, backends, srcs, settings):
    """Writes the spec of a target, for the attribute `env` of its test.

    Args:
        test: Struct with the fields of DistTestInfo for one target; `backend` is the declaration.
        backends: Names of all backends of the call, so that a test may name each of them.
        srcs: Labels of the files with the cases.
        settings: Dict from the name of an add-on to what the target asks of it.

    Returns:
        JSON, with "$" doubled against Bazel's expansion of variables.
    """
    if test.gpus:
        settings = settings | {"gpus": {
            "archs": test.gpu_archs,
            "per_rank": test.gpus_per_rank,
            "ranks_per_gpu": test.ranks_per_gpu,
        }}
    return json.encode({
        # Only the build needs the labels of a backend's libraries.
        "backend": {key: value for key, value in test.backend.items() if key != "deps"},
        "backends": backends,
        "isolation": test.isolation,
        "schema": SPEC_SCHEMA,
        "settings": settings,
        "srcs": srcs,
        "target": test.target,
        "world_sizes": test.world_sizes,
    }).replace("$", "$$")

def _write_programs(ctx):
    """Writes the files by which programs run without Bazel."""
    attr = ctx.attr

    # Each once: Bazel crashes where one is there twice.
    targets = {target.label: target for target in attr.data + attr.deps}.values()

    def expanded(text):
        """Expands `$(location x)` and `$(VARIABLE)` as the rules do in `env` of a test."""
        return ctx.expand_make_variables("args", ctx.expand_location(text, targets), {}) if "$" in text else text

    # In `args`, Bazel takes a location for a path in the runfiles.
    arguments = [
        expanded(text.replace("$(location ", "$(rootpath ").replace("$(locations ", "$(rootpaths "))
        for text in attr.arguments
    ]
    shared = {name: expanded(text) for name, text in attr.env.items()} | {"TEST_WORKSPACE": ctx.workspace_name}
    for file, spec, gpus in zip(ctx.outputs.files, attr.specs, attr.gpus):
        # Two lines, because the second one is a long text that the attribute of the test has already.
        lines = ctx.actions.args()
        lines.set_param_file_format("multiline")
        lines.add(json.encode({
            "args": arguments,
            "environment": shared | {name: expanded(text) for name, text in promise_variables(gpus).items()},
            "is_program": attr.is_program,
        }))
        lines.add(spec.replace("$$", "$") if "$" in spec else spec)
        ctx.actions.write(file, lines)

def _dist_test_spec_impl(ctx):
    attr = ctx.attr
    _write_programs(ctx)
    return [DistTestsInfo(tests = [
        DistTestInfo(
            backend = backend,
            gpu_archs = json.decode(attr.gpu_archs[index]),
            gpus = attr.gpus[index],
            gpus_per_rank = attr.gpus_per_rank[index],
            isolation = attr.isolations[index],
            nodes = attr.nodes,
            ranks_per_gpu = attr.ranks_per_gpu[index],
            target = attr.targets[index],
            world_sizes = json.decode(attr.world_sizes[index]),
        )
        for index, backend in enumerate(attr.backends)
    ])]

dist_test_spec = rule(
    doc = "Provides what the targets of one dist_py_test need, as DistTestsInfo, for queries. Writes for each test the file by which " +
          "its program runs without Bazel (dist_testing/direct.py).",
    implementation = _dist_test_spec_impl,
    attrs = {
        "arguments": attr.string_list(doc = "Arguments of the tests."),
        "backends": attr.string_list(doc = "Names of backends. The other lists are in the same order.", mandatory = True),
        "data": attr.label_list(allow_files = True, doc = "Targets that `arguments` and the variables may name."),
        "deps": attr.label_list(doc = "More such targets."),
        "env": attr.string_dict(doc = "Variables of all tests."),
        "files": attr.output_list(doc = "For each backend the file.", mandatory = True),
        "gpu_archs": attr.string_list(doc = "For each backend a list of names, as JSON.", mandatory = True),
        "gpus": attr.int_list(doc = "GPUs of the largest world.", mandatory = True),
        "gpus_per_rank": attr.int_list(mandatory = True),
        "is_program": attr.bool(doc = "Whether the arguments are those of a program, and not pytest's."),
        "isolations": attr.string_list(mandatory = True),
        "nodes": attr.int(mandatory = True),
        "ranks_per_gpu": attr.int_list(mandatory = True),
        "specs": attr.string_list(doc = "For each backend the variable of the spec.", mandatory = True),
        "targets": attr.string_list(doc = "Labels of the tests, as a user writes them.", mandatory = True),
        "world_sizes": attr.string_list(doc = "For each backend a list of numbers, as JSON.", mandatory = True),
    },
    provides = [DistTestsInfo],
)
