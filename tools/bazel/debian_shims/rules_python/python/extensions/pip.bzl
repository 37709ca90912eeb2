"""`pip.parse(...)` as rules_python 1.x spells it, over the wheel rules of Debian's release."""

load("@rules_python//python/extensions:local_python.bzl", "find_local_python")
load(
    "@rules_python//python/pip_install:pip_repository.bzl",
    "pip_repository_bzlmod",
    "whl_library",
)
load(
    "@rules_python//python/pip_install:requirements_parser.bzl",
    parse_requirements = "parse",
)

def _repo_name(hub_name, distribution):
    return "%s_%s" % (hub_name, distribution.replace("-", "_").replace(".", "_").lower())

def _declare_hub(mctx, tag):
    """Declares the repository `tag.hub_name` and one repository for each locked wheel."""
    interpreter = find_local_python(
        mctx,
        tag.python_version,
        asked_by = "pip.parse(hub_name = \"%s\")" % tag.hub_name,
    )
    lock = parse_requirements(mctx.read(tag.requirements_lock))
    pip_repository_bzlmod(
        name = tag.hub_name,
        incompatible_generate_aliases = True,
        repo_name = tag.hub_name,
        requirements_lock = tag.requirements_lock,
    )
    for distribution, requirement in lock.requirements:
        whl_library(
            name = _repo_name(tag.hub_name, distribution),
            download_only = tag.download_only,
            environment = tag.environment,
            extra_pip_args = tag.extra_pip_args + lock.options,
            isolated = tag.isolated,
            pip_data_exclude = tag.pip_data_exclude,
            python_interpreter = interpreter,
            quiet = tag.quiet,
            repo = tag.hub_name,
            repo_prefix = tag.hub_name + "_",
            requirement = requirement,
            timeout = tag.timeout,
        )

def _pip_impl(mctx):
    for mod in mctx.modules:
        for tag in mod.tags.parse:
            _declare_hub(mctx, tag)

pip = module_extension(
    implementation = _pip_impl,
    tag_classes = {
        "parse": tag_class(
            attrs = {
                "download_only": attr.bool(),
                "environment": attr.string_dict(),
                "extra_pip_args": attr.string_list(),
                "hub_name": attr.string(mandatory = True),
                "isolated": attr.bool(
                    doc = """\
Hides the machine's pip configuration from pip. The default differs from released rules_python: where
this file is used, that configuration tends to be the only way to a package index.
""",
                ),
                "pip_data_exclude": attr.string_list(),
                "python_version": attr.string(),
                "quiet": attr.bool(default = True),
                "requirements_lock": attr.label(allow_single_file = True, mandatory = True),
                "timeout": attr.int(default = 600, doc = "Limit for one wheel, in seconds."),
            },
        ),
    },
)
