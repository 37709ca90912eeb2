"""What the unittest front end sends from the runner to the ranks and to fresh interpreters."""

from __future__ import annotations

from dataclasses import dataclass

from dist_testing.core.ground.codec import Family

# `CaseBody.front_end` of methods of unittest classes.
FRONT_END = "unittest"


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


@dataclass(frozen=True, slots=True)
class UnittestCase:
    """A test method to run; the content of a `CaseBody`.

    Attributes:
        cls: Its class.
        method: Its name.
        tb_locals: Whether tracebacks show local variables.
        file_name: The file for a rendezvous that torch's classes hand to `_run`; "" for none.
        fake_pg: Whether the class asks for torch's fake group; torch's classes hand it to `_run`.
    """

    cls: ClassName
    method: str
    tb_locals: bool
    file_name: str = ""
    fake_pg: bool = False


@dataclass(frozen=True, slots=True)
class MainModule:
    """How to import the main module of the runner again; the state of a `Loader`.

    Attributes:
        name: Its name, if Python was started with `-m`; else None.
        path: Its file, if Python was started with one; else None.
    """

    name: str | None
    path: str | None


UNITTEST_CASES: Family[UnittestCase] = Family("case of the unittest front end", 1, (UnittestCase,))
MAIN_MODULES: Family[MainModule] = Family("main module of the unittest front end", 1, (MainModule,))
