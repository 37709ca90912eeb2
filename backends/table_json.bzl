"""A rule that writes the table of backends to a file."""

def _backend_table_json_impl(ctx):
    output = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(output, json.indent(ctx.attr.table, indent = "  ") + "\n")
    return DefaultInfo(files = depset([output]))

backend_table_json = rule(
    doc = "Writes `<name>.json`.",
    implementation = _backend_table_json_impl,
    attrs = {
        "table": attr.string(
            doc = "The table, as compact JSON.",
            mandatory = True,
        ),
    },
)
