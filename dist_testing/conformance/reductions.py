"""Says which reductions of which dtypes have a value."""

from __future__ import annotations

OPS = ("sum", "product", "min", "max", "band", "bor", "bxor", "avg", "premul_sum")
DTYPES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
_BITWISE = ("band", "bor", "bxor")


def is_complex(dtype: str) -> bool:
    """Return whether a dtype is complex, by its name."""
    return dtype.startswith("complex")


def is_floating(dtype: str) -> bool:
    """Return whether a dtype is a real floating-point one, by its name."""
    return dtype.startswith(("float", "bfloat"))


def is_defined(op: str, dtype: str) -> bool:
    """Return whether the reduction of this dtype has a value. Without one, a backend has to refuse it."""
    if is_complex(dtype):
        return op in ("sum", "avg", "product", "premul_sum")
    if is_floating(dtype):
        return op not in _BITWISE
    if dtype == "bool":
        return op not in ("avg", "premul_sum")
    return op != "premul_sum"
