# SPDX-License-Identifier: MIT
"""Host memory for big tensors: mapped when touched, in huge pages, and kept once it was used.

What the system refuses (another libc, an old kernel, huge pages switched off) only costs speed,
so nothing here reports a failure but `locked_zeros`.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import weakref
from typing import Any

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
# From <malloc.h> and <sys/mman.h>; Python's own modules do not name them.
M_MXFAST = 1
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
MADV_COLLAPSE = 25
LARGEST_KEPT_BLOCK = 32 << 20  # the most glibc accepts
KEPT_BYTES = 1 << 30
TRIMMING_BLOCK = 256 << 10  # glibc looks at its heap's end from 64 KiB on


def mapped_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory the system hands over, in huge pages, only as it is touched."""
    size = math.prod(shape) * dtype.itemsize
    if size < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    # Shared memory, the default, has huge pages only where the system's owner chose so.
    mapping = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -memory.data_ptr() % HUGE_PAGE
    return memory[start : start + size].view(dtype).view(shape)


def locked_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros in page-locked memory, which a GPU reads and writes while the host does other things.

    torch's own way takes the next power of two, up to twice as much, and never gives it back.
    """
    zeros = mapped_zeros(shape, dtype)
    runtime: Any = torch.cuda.cudart()  # boundary: a module without types
    torch.cuda.check_error(runtime.cudaHostRegister(zeros.data_ptr(), zeros.nbytes, 0))
    unlock = weakref.finalize(zeros, runtime.cudaHostUnregister, zeros.data_ptr())
    unlock.atexit = False  # the process ends, and CUDA may be gone already
    return zeros


def use_huge_pages(address: int, size: int) -> None:
    """Move memory that is in use already into huge pages, its neighbours in them included."""
    first = address // HUGE_PAGE * HUGE_PAGE
    last = -(-(address + size) // HUGE_PAGE) * HUGE_PAGE
    _call("madvise", ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)


def keep_freed_memory() -> None:
    """Let the process keep what it frees: a forward's temporaries come back at every layer.

    Handing them to the system and back costs more than most operations on them. This holds for
    the whole process, which may keep up to `KEPT_BYTES` it does not use.
    """
    _call("mallopt", M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK)
    # Small blocks put aside are all merged whenever a large one is freed: here, all the time.
    _call("mallopt", M_MXFAST, 0)
    _call("mallopt", M_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_freed_memory() -> None:
    """Hand what `keep_freed_memory` kept to the system now; of the threads' own heaps whole pages
    inside them, and of the calling thread's also the end."""
    _call("mallopt", M_TRIM_THRESHOLD, 0)
    # malloc_trim forgets the ends of threads' heaps; freeing a block that is not small does not.
    block = torch.empty(TRIMMING_BLOCK, dtype=torch.uint8)
    del block
    _call("malloc_trim", ctypes.c_size_t(0))
    _call("mallopt", M_TRIM_THRESHOLD, KEPT_BYTES)


def _call(name: str, *arguments: object) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
