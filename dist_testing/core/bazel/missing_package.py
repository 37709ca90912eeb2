"""Says why a package that the library imports is not in the runfiles. Loaded only when an import has failed."""

from __future__ import annotations

import os
import sys

# Modules of the packages that a repository gives to the library. Their flags have the same names.
_MODULES = ("psutil", "pytest", "runfiles", "torch")


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return the text for a failed import; None if the module is not in one of the library's packages."""
    module = (error.name or "").partition(".")[0]
    if module not in _MODULES:
        return None
    subject = f"{os.environ.get('TEST_TARGET', sys.argv[0])}: {error}"
    # The hubs of @dist_testing//wheels give tests one such folder.
    for folder in sys.path:
        if os.path.basename(folder) == "site-packages" and not (os.path.isdir(folder) and os.listdir(folder)):
            return (
                f"{subject}; {folder} is {'empty' if os.path.isdir(folder) else 'not there'}.\n"
                "The test runs on another machine, and Bazel does not bring a directory to its runfiles.\n"
                "Send the wheels as a file: --config=remote, or --@dist_testing//wheels:form=archive (docs/wheels.md)."
            )
    return (
        f"{subject} (sys.path: {os.pathsep.join(sys.path)}).\n"
        "The library takes its packages from your hub, and the target that you named for this one does not have it.\n"
        f"Name another one: --@dist_testing//dist_testing/config:{module}=@pypi//... (docs/consumers.md)."
    )
