"""How kernels are compiled: numba with an explicit signature, so never in the middle of a round.

A kernel is compiled when its module is imported, or loaded from numba's cache beside the source (or in
NUMBA_CACHE_DIR, or the user's cache).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

BYTES_OF = {word: f"Array({word}, 1, 'C', readonly=True)" for word in ("u1", "u2", "u8")}
"""Arrays over immutable bytes, as numpy.frombuffer makes them."""

_OPTIONS: dict[str, Any] = {"boundscheck": False, "nogil": True, "error_model": "numpy"}


def kernel(signature: str) -> Callable[[Function], Function]:
    """Compile for one signature, cached on disk where some cache directory is writable."""

    def compiled(function: Function) -> Function:
        try:
            return njit(signature, cache=True, **_OPTIONS)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # numba found no directory to cache in: compile at every start
            return njit(signature, **_OPTIONS)(function)  # type: ignore[no-any-return]

    return compiled


def inlined(function: Function) -> Function:
    """A helper that is compiled into each kernel that calls it."""
    return njit(inline="always")(function)  # type: ignore[no-any-return]
