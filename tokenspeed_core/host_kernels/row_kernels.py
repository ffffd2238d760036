# SPDX-License-Identifier: MIT
"""What a layer does to its rows between the products, a pass over a row each."""

from __future__ import annotations

from functools import cache

import numpy as np

from tokenspeed_core.host_kernels.exponential import exponential
from tokenspeed_core.host_kernels.team import Kernel, arguments_at, compiled, own_share
from tokenspeed_core.host_kernels.vectors import FLOAT32, ElementType, reader, writer

_read_float = reader(FLOAT32)


@cache
def rms_norm(width: int, eps: float, kind: ElementType) -> Kernel:
    """x / rms(x) * weight, of the sum of two rows if `added` is not 0, which x then holds.

    Arguments: the addresses of `x`, `added` and `out` [rows, width] and of `weight` float32
    [width]; the number of rows.
    """
    read, write, nbytes = reader(kind), writer(kind), kind.nbytes
    epsilon, share, one = np.float32(eps), np.float32(1 / width), np.float32(1)

    @compiled
    def scale_of(x: int) -> np.float32:
        total = np.float32(0)
        for i in range(width):
            value = read(x, i)
            total += value * value
        scale: np.float32 = one / np.sqrt(total * share + epsilon)
        return scale

    def normalise(address: int) -> None:
        x, added, out, weight, rows = arguments_at(address)[:5]
        first, last = own_share(rows)
        for row in range(first, last):
            mine, result = x + row * width * nbytes, out + row * width * nbytes
            if added != 0:
                other = added + row * width * nbytes
                for i in range(width):
                    write(mine, i, read(mine, i) + read(other, i))
            scale = scale_of(mine)
            for i in range(width):
                write(result, i, read(mine, i) * scale * _read_float(weight, i))

    return Kernel(normalise, num_arguments=5)


@cache
def silu_gate(width: int, kind: ElementType) -> Kernel:
    """silu(gate) * up, where silu(x) = x / (1 + e^-x).

    Arguments: the addresses of `gate_up` [rows, 2 x width] and of `out` [rows, width]; the number
    of rows.
    """
    read, write, nbytes, one = reader(kind), writer(kind), kind.nbytes, np.float32(1)

    def gate(address: int) -> None:
        gate_up, out, rows = arguments_at(address)[:3]
        first, last = own_share(rows)
        for row in range(first, last):
            mine, result = gate_up + row * 2 * width * nbytes, out + row * width * nbytes
            for i in range(width):
                x = read(mine, i)
                write(result, i, x / (one + exponential(-x)) * read(mine, width + i))

    return Kernel(gate, num_arguments=3)


@cache
def rotate(heads: int, dim: int, kind: ElementType) -> Kernel:
    """Rotate the first `heads` of each token by the angles of its position, in place.

    Arguments: the addresses of `x` [tokens, ..., dim], of the cosines and of the signed sines
    [tokens, dim]; the number of tokens, and elements from one token of x to the next.
    """
    read, write, nbytes, half = reader(kind), writer(kind), kind.nbytes, dim // 2

    def turn(address: int) -> None:
        x, cosines, sines, tokens, pitch = arguments_at(address)[:5]
        first, last = own_share(tokens)
        for token in range(first, last):
            cosine, sine = cosines + token * dim * nbytes, sines + token * dim * nbytes
            for head in range(heads):
                mine = x + (token * pitch + head * dim) * nbytes
                for i in range(half):
                    low, high = read(mine, i), read(mine, half + i)
                    write(mine, i, low * read(cosine, i) + high * read(sine, i))
                    turned = high * read(cosine, half + i) + low * read(sine, half + i)
                    write(mine, half + i, turned)

    return Kernel(turn, num_arguments=5)
