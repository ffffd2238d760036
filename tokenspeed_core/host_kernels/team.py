# SPDX-License-Identifier: MIT
"""Kernels run by the threads that torch computes with, so that no second pool fights for the cores.

torch links GNU's OpenMP, or one that speaks its interface, and its library is in reach of all.
"""

from __future__ import annotations

import ctypes
import logging
import os
import struct
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from numba import carray, cfunc, njit, types

from tokenspeed_core.errors import EngineError

F = TypeVar("F", bound=Callable[..., Any])

MAX_ARGUMENTS = 16
# Numbers read and written in about the time that waking threads takes.
LEAST_SHARED_WORK = 1 << 14
# The order of a sum may be the vectors', and a product and a sum may be one step. Numbers that are
# none stay what they are, for a request is ended by them; no division becomes an estimate.
_FAST_MATH = {"reassoc", "contract", "nsz"}
# It tells every step of every function, to whoever reads the root's messages.
logging.getLogger("numba").setLevel(logging.WARNING)
_signature = types.void(types.CPointer(types.int64))
_thread_number = types.ExternalFunction("omp_get_thread_num", types.int32())
_num_threads = types.ExternalFunction("omp_get_num_threads", types.int32())


def compiled(function: F) -> F:
    """Make a function one that kernels call; it is compiled with them, for the types they give.

    Dividing by zero gives infinity there: a check would keep loops from becoming vectors.
    """
    made: F = njit(
        fastmath=_FAST_MATH, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    return made


@compiled
def arguments_at(address: int) -> Any:
    """A kernel's arguments, int64 [MAX_ARGUMENTS]."""
    return carray(address, MAX_ARGUMENTS)


@compiled
def own_number() -> int:
    """The calling thread's number in its team."""
    return _thread_number()  # type: ignore[no-any-return]  # compiled: an int


@compiled
def own_share(count: int) -> tuple[int, int]:
    """The first of `count` items that are the calling thread's, and the one after its last."""
    each = -(-count // _num_threads())
    first = _thread_number() * each
    return first, min(count, first + each)


class Kernel:
    """A `function` of the address of its arguments, 64-bit integers, made machine code.

    That takes up to a second, so it is done beside what follows, and `wait` waits for it.
    """

    def __init__(self, function: Callable[[int], None], *, num_arguments: int) -> None:
        assert num_arguments <= MAX_ARGUMENTS, "more arguments than a kernel can have"
        self._pack = struct.Struct(f"{num_arguments}q").pack
        self._in_team = _team_runner()
        compiler = ThreadPoolExecutor(1, thread_name_prefix="tokenspeed-kernel")
        self._compiling: Future[Any] | None = compiler.submit(_compile, function)
        compiler.shutdown(wait=False)  # its thread ends with this

    def wait(self) -> None:
        """Wait for the machine code; EngineError if there is none."""
        compiling = self._compiling
        if compiling is None:
            return
        try:
            self._code = compiling.result()  # owns the machine code
            self._address: int = self._code.address
        except Exception as error:
            raise EngineError(
                "a kernel of the CPU could not be compiled; numba of another version, or told "
                f"not to compile by the environment (NUMBA_...)? {type(error).__name__}: {error}"
            ) from error
        self._alone = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(self._address)
        self._compiling = None

    def __call__(self, *arguments: int, threads: int) -> None:
        """Run on the calling thread and `threads` - 1 others, which share the items."""
        if self._compiling is not None:
            self.wait()
        packed = self._pack(*arguments)
        if threads == 1:
            self._alone(packed)
        else:
            self._in_team(self._address, packed, threads, 0)


def _compile(function: Callable[[int], None]) -> object:
    return cfunc(_signature, fastmath=_FAST_MATH, error_model="numpy")(function)


def useful_threads(num_items: int, cost: int) -> int:
    """All of torch's threads, or one for less work than waking them takes.

    `cost` is an item's, in numbers read or written. Never some of them: GNU's OpenMP ends the
    threads that a smaller team leaves out, and torch's next operation would start them again.
    """
    return 1 if num_items * cost < LEAST_SHARED_WORK else torch.get_num_threads()


def _team_runner() -> Callable[[int, bytes, int, int], None]:
    library = ctypes.CDLL(None)
    if not hasattr(library, "GOMP_parallel"):
        raise EngineError(
            f"expected torch {torch.__version__} to bring an OpenMP library with GOMP_parallel "
            f"into reach, found none in process {os.getpid()}; torch's wheels for Linux do"
        )
    run = library.GOMP_parallel
    run.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint]
    run.restype = None
    in_team: Callable[[int, bytes, int, int], None] = run
    return in_team
