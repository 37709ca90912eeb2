"""Conditions for select() over a value that a rule computes."""

load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

def declare_conditions(value_rule, conditions, **attributes):
    """Declares conditions over one value.

    Args:
        value_rule: A rule that provides the value as config_common.FeatureFlagInfo.
        conditions: Name of each condition -> the value with which it holds.
        **attributes: Attributes of the target of `value_rule`, which has the first name and ".value".
    """
    value = conditions.keys()[0] + ".value"
    value_rule(
        name = value,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        **attributes
    )
    for name, wanted in conditions.items():
        native.config_setting(
            name = name,
            flag_values = {value: wanted},
            visibility = ["//visibility:public"],
        )
