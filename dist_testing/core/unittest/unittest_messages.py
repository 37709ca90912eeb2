"""What the unittest front end sends from the runner to the ranks: a method, the name of its class, and values.

`setUpClass` runs once, in the runner. Ranks come from a process in which no test has run, so they get by pickle what
the method has bound: attributes of the class and of its base classes, and names of the class's module.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pickle
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.launch.isolation import FORK

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# `CaseBody.front_end` of methods of unittest classes.
FRONT_END = "unittest"
# A fresh interpreter has the main module under the second name, as multiprocessing does.
_MAIN = ("__main__", "__mp_main__")


@dataclass(frozen=True, slots=True)
class ClassName:
    """The name of a test class, by which a rank finds the class.

    Attributes:
        module: Its module.
        qualname: Its qualified name.
        place: For a class that its module does not hold under that name (made with `type()`, or in a function): its
            place among the classes of that name, in the order in which they were made. Else None.
    """

    module: str
    qualname: str
    place: int | None

    @classmethod
    def of(cls, test_class: type[unittest.TestCase]) -> ClassName:
        """Return the name of a class, by which `find` finds it in another process."""
        name = cls(test_class.__module__, test_class.__qualname__, None)
        if name._found() is test_class:
            return name
        return dataclasses.replace(name, place=name._namesakes().index(test_class))

    def find(self) -> Any:
        """Return the class of that name in this process; import its module if necessary.

        Raises:
            UsageError: If there is no such class.
        """
        found = self._found()
        if found is None and self.module not in sys.modules:
            importlib.import_module(self.module)
            found = self._found()
        if found is None:
            raise UsageError(
                f"{self.module}.{self.qualname} does not exist on the rank.\n"
                "The class was made while tests ran, or by code that a fresh interpreter does not run.\n"
                f'Make it when its module is imported, or use isolation = "{FORK.name}".'
            )
        return found

    def _found(self) -> Any:
        if self.place is not None:
            return next(iter(self._namesakes()[self.place :]), None)
        try:
            return functools.reduce(getattr, self.qualname.split("."), sys.modules[self.module])
        except (KeyError, AttributeError):
            return None

    def _namesakes(self) -> list[type]:
        modules = _MAIN if self.module in _MAIN else (self.module,)
        return [
            cls
            for cls in dict.fromkeys(_below(unittest.TestCase))
            if cls.__qualname__ == self.qualname and cls.__module__ in modules
        ]


def _below(cls: type) -> Iterator[type]:
    subclasses: list[type] = cls.__subclasses__()
    for subclass in subclasses:
        yield subclass
        yield from _below(subclass)


@dataclass(frozen=True, slots=True)
class UnittestCase:
    """A test method to run; the content of a `CaseBody`. `tb_locals`: whether tracebacks show local variables.

    torch's classes hand two of them to `_run`: `file_name`, the file for a rendezvous ("" for none), and `fake_pg`,
    whether the class asks for torch's fake group. `values` is the file with what `setUpClass` has bound; "" for none.
    """

    cls: ClassName
    method: str
    tb_locals: bool
    file_name: str = ""
    fake_pg: bool = False
    values: str = ""


UNITTEST_CASES: Family[UnittestCase] = Family("case of the unittest front end", 1, (UnittestCase,))

# Packages whose classes keep what is theirs in the runner.
_NOT_OF_TESTS = ("builtins", "dist_testing", "torch", "unittest")


@dataclass(frozen=True, slots=True)
class _Value:
    """A value that `setUpClass` has bound to a class, or to the module of a name."""

    owner: ClassName | str
    name: str
    # None if it cannot be pickled; then there is a reason.
    pickled: bytes | None
    reason: str = ""


class _StaysInRunner:
    """In place of an attribute that cannot be pickled: it tells why a rank does not have it."""

    def __init__(self, value: _Value) -> None:
        self._value = value

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(
            f"{owner.__qualname__}.{self._value.name} is not on the rank: setUpClass has made it in the runner, and it "
            f"cannot be pickled ({self._value.reason}).\n"
            "setUpClass runs in the runner, and its values reach the ranks by pickle.\n"
            "Make the object in setUpRank, or let setUpClass bind what a rank needs of it, such as a path or a port."
        )


# Of each class, what its last `setUpClass` has bound, and the file that holds it.
_values: dict[type, list[_Value]] = {}
_files: dict[type, str] = {}
# Classes whose `setUpClass` runs now.
_in_set_up: set[type] = set()
_NOTHING = object()


def record_values(cls: Any) -> None:
    """Have the `setUpClass` of a class, its own or that of a mixin, note what it binds, for `write_values`."""
    definer = next(base for base in cls.__mro__ if "setUpClass" in vars(base))
    method = vars(definer)["setUpClass"]
    if not _is_of_tests(definer) or not isinstance(method, classmethod) or hasattr(method.__func__, "records_values"):
        return

    @functools.wraps(method.__func__)
    def set_up_class(of: Any) -> None:
        if of in _in_set_up:
            # The method of a derived class has called this one, and notes what both bind.
            method.__func__(of)
            return
        before = _bound_names(of)
        _in_set_up.add(of)
        try:
            method.__func__(of)
        finally:
            _in_set_up.remove(of)
        bound = _bound_names(of).items()
        _values[of] = [_value(*key, value) for key, value in bound if before.get(key, _NOTHING) is not value]
        _files.pop(of, None)

    set_up_class.records_values = True  # type: ignore[attr-defined]  # a mark of this module
    cls.setUpClass = classmethod(set_up_class)


def write_values(cls: type, folder: Callable[[], Path]) -> str:
    """Write what the class's `setUpClass` has bound to a file in `folder()`, which no other user can write to; once.

    Returns the path of the file; "" if there is nothing to tell the ranks.
    """
    if (values := _values.get(cls)) and cls not in _files:
        with tempfile.NamedTemporaryFile(prefix="class-", dir=folder(), delete=False) as file:
            pickle.dump(values, file)
        _files[cls] = file.name
    return _files.get(cls, "")


def read_values(path: str) -> None:
    """Bind on a rank what `setUpClass` has bound in the runner; `path` is that of `write_values`.

    Raises:
        UsageError: If a value cannot be made from its pickle.
    """
    values: list[_Value] = pickle.loads(Path(path).read_bytes()) if path else []
    for value in values:
        owner = value.owner.find() if isinstance(value.owner, ClassName) else sys.modules.get(value.owner)
        if value.pickled is None and isinstance(owner, type):
            setattr(owner, value.name, _StaysInRunner(value))
        if value.pickled is None or owner is None:
            continue
        try:
            bound = pickle.loads(value.pickled)
        except Exception as error:
            raise UsageError(
                f"{value.name}, which setUpClass has bound, cannot be made on a rank: {type(error).__name__}: {error}\n"
                "Values of setUpClass reach the ranks by pickle, and pickle cannot read what this value has written.\n"
                "Make the value in setUpRank."
            ) from error
        setattr(owner, value.name, bound)


def _is_of_tests(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in _NOT_OF_TESTS


def _bound_names(cls: type) -> dict[tuple[type | ModuleType, str], object]:
    owners: list[type | ModuleType] = [base for base in cls.__mro__ if _is_of_tests(base)]
    if (module := sys.modules.get(cls.__module__)) is not None:
        owners.append(module)
    return {
        (owner, name): value
        for owner in owners
        for name, value in vars(owner).items()
        if not (name.startswith("__") and name.endswith("__"))
    }


def _value(owner: type | ModuleType, name: str, value: object) -> _Value:
    place: ClassName | str = owner.__name__
    if isinstance(owner, type):
        is_test_class = issubclass(owner, unittest.TestCase)
        place = ClassName.of(owner) if is_test_class else ClassName(owner.__module__, owner.__qualname__, None)
    try:
        return _Value(place, name, pickle.dumps(value))
    except Exception as error:
        # The value's own code decides what it raises.
        return _Value(place, name, None, f"{type(error).__name__}: {error}")
