"""What a hub has in the place of a package that the chosen lock lacks."""

def _missing_package_impl(ctx):
    fail(("The lock \"{lock}\" of the hub \"{hub}\" has no package \"{package}\".\n" +
          "Only {others} it; with that lock's copy beside the packages of this one, two torches could meet in one test.\n" +
          "Add it to the lock file of \"{lock}\", or choose another lock (docs/wheels.md).").format(
        hub = ctx.attr.hub,
        lock = ctx.attr.lock,
        others = "{} {}".format(
            ", ".join(["\"{}\"".format(other) for other in ctx.attr.others]),
            "has" if len(ctx.attr.others) == 1 else "have",
        ),
        package = ctx.attr.package,
    ))

missing_package = rule(
    doc = "Fails, and says which lock lacks the package.",
    implementation = _missing_package_impl,
    attrs = {
        "hub": attr.string(mandatory = True),
        "lock": attr.string(mandatory = True),
        "others": attr.string_list(mandatory = True),
        "package": attr.string(mandatory = True),
    },
)
