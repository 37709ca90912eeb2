"""What the unittest front end sends from the runner to the ranks: the name of a class, and a method to run."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.launch.isolation import FORK

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
