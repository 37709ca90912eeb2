"""The macro for authors of backends: `load("@dist_testing//dist_testing:conformance.bzl", "backend_conformance_test")`."""

load("//dist_testing/private:conformance.bzl", _backend_conformance_test = "backend_conformance_test")

backend_conformance_test = _backend_conformance_test
