"""``--select``: choose rows of a prompt file by an expression in the row number ``i``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any, Final

from outrider.errors import ConfigError

_Evaluate = Callable[[int], int]

_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}
_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_LONGEST: Final = 200


def select(expression: str) -> Callable[[int], bool]:
    """Compile a test of row numbers from an expression such as ``i%8==0`` or ``i<20 and not i%2``.

    It may contain whole numbers, ``i``, ``+ - * // %``, comparisons and ``and or not``; no calls.

    Raises:
        ConfigError: the expression contains something else; the message names it.
    """
    if len(expression) > _LONGEST:
        raise ConfigError(f"--select takes at most {_LONGEST} characters, not {len(expression)}")
    try:
        body = ast.parse(expression.strip(), mode="eval").body
        evaluate = _compile(body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(f"--select {expression!r} is not an expression; write one such as i%8==0") from None

    def chosen(row: int) -> bool:
        try:
            return bool(evaluate(row))
        except ZeroDivisionError:
            raise ConfigError(f"--select {expression!r} divides by zero at row {row}") from None

    return chosen


def _compile(node: ast.expr) -> _Evaluate:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        constant = node.value
        return lambda i: constant
    if isinstance(node, ast.Name) and node.id == "i":
        return lambda i: i
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        apply, left, right = _ARITHMETIC[type(node.op)], _compile(node.left), _compile(node.right)
        return lambda i: int(apply(left(i), right(i)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        inner, negate = _compile(node.operand), isinstance(node.op, ast.USub)
        return lambda i: -inner(i) if negate else int(not inner(i))
    if isinstance(node, ast.BoolOp):
        parts = [_compile(value) for value in node.values]
        combine = all if isinstance(node.op, ast.And) else any
        return lambda i: int(combine(part(i) for part in parts))
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
        return _compile_comparison(node)
    raise ConfigError(
        f"--select does not understand {ast.unparse(node)!r}; it knows i, whole numbers, + - * // %, comparisons, "
        "and, or, not"
    )


def _compile_comparison(node: ast.Compare) -> _Evaluate:
    terms = [_compile(term) for term in (node.left, *node.comparators)]
    tests = [_COMPARISONS[type(op)] for op in node.ops]

    def compare(i: int) -> int:
        values = [term(i) for term in terms]
        return int(all(test(a, b) for test, a, b in zip(tests, values, values[1:], strict=False)))

    return compare
