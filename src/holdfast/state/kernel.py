"""The one decorator for code that runs per row.

Every kernel names its signatures. That makes the set of machine code finite and known: ``warm`` compiles
or loads exactly it, and nothing can compile later, in the middle of an epoch. Inputs are declared
read-only, because rows that come straight from Arrow buffers are, and writable arrays convert to that for
free. The price is that callers must bring the declared dtype and layout; a mismatch is a TypeError, not a
slow surprise.

Compiling waits for the first call, so that importing this package costs no compile. Helpers that kernels
call must live in the kernel's own module: Numba's disk cache looks only at that file to see whether its
code is stale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types

REGISTRY: list[Kernel] = []


class Kernel:
    """A function of fixed signatures, compiled (or loaded from disk) once, that runs without the GIL."""

    def __init__(self, function: Callable[..., Any], signatures: tuple[Any, ...]) -> None:
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.signatures = signatures
        self.dispatcher: Any = None
        self._function = function
        REGISTRY.append(self)

    def compile(self) -> Any:
        if self.dispatcher is None:
            self.dispatcher = numba.njit(list(self.signatures), nogil=True, cache=True)(self._function)
        return self.dispatcher

    def __call__(self, *arguments: Any) -> Any:
        return (self.dispatcher or self.compile())(*arguments)


def kernel(*signatures: Any) -> Callable[[Callable[..., Any]], Kernel]:
    return lambda function: Kernel(function, signatures)


def _array(dtype: Any, dimensions: int, *, readonly: bool) -> Any:
    return types.Array(dtype, dimensions, "C", readonly=readonly)


# Names of argument types: R… is read, W… is written.
Void, Int, Float, Bool = types.void, types.int64, types.float64, types.boolean
RInts, WInts = _array(types.int64, 1, readonly=True), _array(types.int64, 1, readonly=False)
RPairs, WPairs = _array(types.int64, 2, readonly=True), _array(types.int64, 2, readonly=False)
RFloats, WFloats = _array(types.float64, 1, readonly=True), _array(types.float64, 1, readonly=False)
RShorts, WShorts = _array(types.int32, 1, readonly=True), _array(types.int32, 1, readonly=False)
RBytes, WBytes = _array(types.uint8, 1, readonly=True), _array(types.uint8, 1, readonly=False)
RQuads, WQuads = _array(types.float64, 2, readonly=True), _array(types.float64, 2, readonly=False)
RSketches, WSketches = _array(types.uint8, 2, readonly=True), _array(types.uint8, 2, readonly=False)
