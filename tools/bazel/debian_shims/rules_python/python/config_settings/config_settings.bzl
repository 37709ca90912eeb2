"""The flag that chooses a Python, and conditions on it, with the names and the meaning that rules_python 1.x gives them."""

load("@bazel_skylib//lib:selects.bzl", "selects")
load("@bazel_skylib//rules:common_settings.bzl", "string_flag")

# Debian's list has the releases of its own time alone.
_MINOR_VERSIONS = ["3.{}".format(minor) for minor in range(8, 16)]

# buildifier: disable=unnamed-macro
def construct_config_settings(python_versions):
    """Declares the flag `python_version`, and a condition `is_python_<version>` for each version.

    Args:
        python_versions: The releases that Debian's rules can download, such as "3.11.1".
    """

    # Empty: the default toolchain's Python.
    string_flag(
        name = "python_version",
        build_setting_default = "",
        values = [""] + _MINOR_VERSIONS + python_versions,
        visibility = ["//visibility:public"],
    )
    native.config_setting(
        name = "is_python_version_unset",
        flag_values = {":python_version": ""},
        visibility = ["//visibility:public"],
    )
    for version in python_versions:
        native.config_setting(
            name = "is_python_" + version,
            flag_values = {":python_version": version},
            visibility = ["//visibility:public"],
        )
    for minor in _MINOR_VERSIONS:
        native.config_setting(
            name = "_is_named_python_" + minor,
            flag_values = {":python_version": minor},
        )
        selects.config_setting_group(
            name = "is_python_" + minor,
            match_any = [":_is_named_python_" + minor] + [
                ":is_python_" + version
                for version in python_versions
                if version.startswith(minor + ".")
            ],
            visibility = ["//visibility:public"],
        )
