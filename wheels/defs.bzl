"""Rules over hubs of wheels: `load("@dist_testing//wheels:defs.bzl", "wheel_script")`. docs/wheels.md explains them."""

load("//wheels/private:merged.bzl", _merged_site_packages = "merged_site_packages")
load("//wheels/private:wheel_script.bzl", _wheel_script = "wheel_script")
load("//wheels/private:with_lock.bzl", _with_lock = "with_lock")

merged_site_packages = _merged_site_packages
wheel_script = _wheel_script
with_lock = _with_lock
