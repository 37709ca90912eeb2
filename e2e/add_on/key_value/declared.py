"""What `key_value` adds to dist_testing. This module imports nothing else: pytest loads it in every run."""

from dist_testing.ext import AddOn

ADD_ON = AddOn(
    name="key_value",
    ext_version=1,
    # Other tests get no server.
    wanted=lambda case, spec: "test_key_value" in case.name,
    resource="key_value.runner:Server",
    watcher="key_value.runner:SizeLimit",
    explainer="key_value.runner:explain_unknown_key",
    rank_service="key_value.rank:Tidiness",
    setting="key_value.runner:read_limit",
    setting_help="int: largest number of keys (default: no limit)",
)
