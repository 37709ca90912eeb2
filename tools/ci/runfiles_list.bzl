"""Writes a list of the runfiles of programs, for a test of their dependencies."""

def _runfiles_list_impl(ctx):
    files = depset(transitive = [program[DefaultInfo].default_runfiles.files for program in ctx.attr.programs])
    lines = ctx.actions.args().set_param_file_format("multiline")
    lines.add_all(files, map_each = _short_path, uniquify = True)
    out = ctx.actions.declare_file("{}.txt".format(ctx.label.name))
    ctx.actions.write(out, lines)
    return [DefaultInfo(files = depset([out]))]

def _short_path(file):
    return file.short_path

runfiles_list = rule(
    implementation = _runfiles_list_impl,
    doc = "Writes the runfiles of `programs` into a file, one path per line.",
    attrs = {
        "programs": attr.label_list(doc = "Executable targets.", mandatory = True, providers = [DefaultInfo]),
    },
)
