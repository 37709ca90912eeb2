"""The quarantine file of a workspace, where the runner looks for it."""

load("//dist_testing/private:labels.bzl", "user_label")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

def _quarantine_file_impl(ctx):
    files = ctx.files.flag
    if not files:
        return [DefaultInfo()]
    if len(files) > 1:
        fail(("{}: {} files.\n" +
              "The flag names the quarantine file of the workspace, and there is one.\n" +
              "Name one file, such as //:quarantine.toml (docs/quarantine.md).").format(user_label(ctx.attr.flag.label), len(files)))

    # A fixed name, beside the library.
    output = ctx.actions.declare_file("quarantine.toml")
    ctx.actions.symlink(output = output, target_file = files[0])
    return [DefaultInfo(files = depset([output]), runfiles = ctx.runfiles([output]))]

quarantine_file = rule(
    doc = "Makes `quarantine.toml` of the file that a flag names; nothing, if it names none.",
    implementation = _quarantine_file_impl,
    attrs = {
        "flag": attr.label(mandatory = True, allow_files = True),
    },
)
