"""Finds the expression of the call that a frame is in, from the frame's position and its source file."""

from __future__ import annotations

import ast
import dis
import functools
import itertools
import linecache
import sys
from types import CodeType, FrameType

# The call instructions of Python 3.10. It makes them in the order in which it evaluates the calls.
_CALLS_OF_310 = frozenset({"CALL_FUNCTION", "CALL_FUNCTION_EX", "CALL_FUNCTION_KW", "CALL_METHOD"})
# Calls in them have instructions in another code object; of a dict, the order differs from that of the syntax tree.
_UNORDERED = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Dict)


def call_in(frame: FrameType) -> ast.Call | None:
    """Return the expression of the call that the frame is in; None if there is none, or no source."""
    code = frame.f_code
    if sys.version_info < (3, 11):
        return _call_by_order(frame)
    position = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    line, end_line, column, end_column = position
    if line is None or end_line is None or column is None or end_column is None:
        return None
    lines = [text.encode() for text in linecache.getlines(code.co_filename, frame.f_globals)[line - 1 : end_line]]
    if len(lines) != end_line - line + 1:
        return None
    # The end first: both may be on one line.
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    return _parsed_call(b"".join(lines))


def _parsed_call(source: bytes) -> ast.Call | None:
    try:
        node = ast.parse(b"(" + source + b"\n)", mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return node if isinstance(node, ast.Call) else None


def _call_by_order(frame: FrameType) -> ast.Call | None:
    """Python 3.10 knows the line only. The n-th call instruction of a statement belongs to its n-th call.

    None if the numbers of instructions and of calls differ: then the statement is of a kind that has others, too.
    """
    code = frame.f_code
    text = "".join(linecache.getlines(code.co_filename, frame.f_globals))
    statement = _statement_at(text, frame.f_lineno)
    if statement is None or any(isinstance(node, _UNORDERED) for node in ast.walk(statement)):
        return None
    calls = _Calls()
    calls.visit(statement)
    offsets = _call_offsets(code, statement.lineno, statement.end_lineno or statement.lineno)
    if len(offsets) != len(calls.found) or frame.f_lasti not in offsets:
        return None
    return calls.found[offsets.index(frame.f_lasti)]


@functools.lru_cache(maxsize=8)
def _statement_at(text: str, line: int) -> ast.stmt | None:
    """Return the simple statement at a line of a source; None if there is none, or if there are several."""
    try:
        nodes = ast.walk(ast.parse(text))
    except (SyntaxError, ValueError):
        return None
    found = [
        node
        for node in nodes
        if isinstance(node, ast.stmt)
        and not hasattr(node, "body")
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return found[0] if len(found) == 1 else None


class _Calls(ast.NodeVisitor):
    """Lists calls in the order of their instructions: a call's parts go before it."""

    def __init__(self) -> None:
        self.found: list[ast.Call] = []

    def visit_Call(self, node: ast.Call) -> None:
        """Note a call after the calls in its function and its arguments."""
        self.generic_visit(node)
        self.found.append(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Visit the value first: Python evaluates it before the targets."""
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit the value and the target; inside functions, annotations are not evaluated."""
        if node.value is not None:
            self.visit(node.value)
        self.visit(node.target)


def _call_offsets(code: CodeType, first_line: int, last_line: int) -> list[int]:
    """Return the offsets of the call instructions of some lines."""
    offsets = []
    line = 0
    starts = dict(dis.findlinestarts(code))
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset) or line
        if instruction.opname in _CALLS_OF_310 and first_line <= line <= last_line:
            offsets.append(instruction.offset)
    return offsets
