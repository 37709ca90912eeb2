"""Converts pytest node ids to other kinds of names."""

from __future__ import annotations

__all__ = ["module_of", "name_parts", "xml_name"]


def name_parts(nodeid: str) -> tuple[list[str], str]:
    """Split a node id into file, classes and function, and its parameters, which may contain any text."""
    head, bracket, parameters = nodeid.partition("[")
    return head.split("::"), bracket + parameters


def module_of(path: str) -> str:
    """Return the dotted name of a file."""
    return path.removesuffix(".py").replace("/", ".")


def xml_name(nodeid: str) -> tuple[str, str]:
    """Return the class name and the name of a case in the XML."""
    (path, *classes), parameters = name_parts(nodeid)
    name = classes.pop() if classes else ""
    return ".".join([module_of(path), *classes]), name + parameters
