# SPDX-License-Identifier: MIT
"""What the processor's own kernels compute, against torch's operations.

    python tests/benchmarks/kernel_speed.py [--json] [--rows 1 16 64] [--length 256]

By model shape and number of rows, for one layer: attention over scattered pages, the norms, the
activation and the rotation together, and the products, where the processor can run the kernel for
them. Torch's way is what other devices run, for products oneDNN's with packed weights and at least
four rows, which other processors run (those with matrix tiles, though they could run the kernel).
The two take turns; told are medians in microseconds, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np
import torch
from attrs import asdict, define, evolve, frozen
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tokenspeed_core.host_kernels.pair_tiles import has_pair_products
from tokenspeed_core.host_kernels.products import bfloat16_product
from tokenspeed_core.models.config import ModelConfig
from tokenspeed_core.testing.tiny_model import tiny_model
from tokenspeed_core.torch_plane.attention import AttentionPlan, AttentionPlanner
from tokenspeed_core.torch_plane.blocked import BlockedLinear
from tokenspeed_core.torch_plane.host_memory import keep_freed_memory
from tokenspeed_core.torch_plane.inputs import ForwardInputs
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache
from tokenspeed_core.torch_plane.linear import FEWEST_ROWS, Linear, PackedLinear
from tokenspeed_core.torch_plane.plain_rows import PlainRows
from tokenspeed_core.torch_plane.row_operations import RowOperations, row_operations
from tokenspeed_core.torch_plane.tiles import TiledLinear

CPU, PAGE_SIZE, EPS = torch.device("cpu"), 16, 1e-5
# Enough layers that the pages of one are not in a cache when it is read again.
LAYERS = 8


@frozen
class Shape:
    """A layer's sizes."""

    name: str
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    dim: int


SHAPES = (
    Shape("SmolLM2-135M", 576, 1536, 9, 3, 64),
    Shape("Qwen2.5-0.5B", 896, 4864, 14, 2, 64),
    Shape("Llama-3.2-1B", 2048, 8192, 32, 8, 64),
    Shape("Qwen3-8B", 4096, 12288, 32, 8, 128),
)


@define
class Measured:
    """Microseconds a layer, and how many times faster the kernels are."""

    shape: str
    rows: int
    what: str
    kernels_us: float
    torch_us: float
    ratio: float


def in_turns(*ways: Callable[[], None], repeats: int = 15) -> list[float]:
    """Median microseconds of each way, a layer."""
    times: list[list[float]] = [[] for _ in ways]
    for repeat in range(repeats + 2):
        for way, found in zip(ways, times, strict=True):
            start = time.perf_counter()
            way()
            if repeat > 1:
                found.append(time.perf_counter() - start)
    return [statistics.median(found) * 1e6 / LAYERS for found in times]


def config_of(shape: Shape) -> ModelConfig:
    """As much of a model's config as attention looks at."""
    return evolve(
        tiny_model().config,
        num_layers=LAYERS,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.dim,
    )


def attention(shape: Shape, rows: int, *, length: int) -> list[float]:
    """Decode attention by the kernel, and by torch."""
    config = config_of(shape)
    width = -(-length // PAGE_SIZE)
    count = 1 + rows * width
    cache = PagedKVCache(config, count, page_size=PAGE_SIZE, dtype=torch.bfloat16, device=CPU)
    cache.pages.normal_()
    table = (torch.randperm(count - 1)[: rows * width] + 1).view(rows, width)
    inputs = ForwardInputs(
        token_ids=torch.zeros(rows, dtype=torch.int64),
        positions=torch.full((rows,), length - 1),
        row_lengths=[1] * rows,
        context_lengths=[length] * rows,
        num_extends=0,
        block_table=table.numpy().astype(np.int32),
        logit_rows=torch.arange(rows),
    )
    qkv = torch.randn(rows, shape.heads + 2 * shape.kv_heads, shape.dim).bfloat16()
    out = qkv[:, : shape.heads].clone()
    rows_of = row_operations(torch.bfloat16, CPU)
    kernel = rows_of.decoding(shape.heads, shape.kv_heads, dim=shape.dim)
    plans = [
        AttentionPlanner(cache, num_heads=shape.heads, decoding=decoding).plan(inputs)
        for decoding in (kernel, None)
    ]

    def run(plan: AttentionPlan) -> None:
        for layer in range(LAYERS):
            plan.attend(layer, qkv, out=out)

    return in_turns(*(lambda plan=plan: run(plan) for plan in plans))


def between(shape: Shape, rows: int) -> list[float]:
    """Two norms, the activation and the rotation by kernels, and by torch."""

    def way(operations: RowOperations) -> Callable[[], None]:
        norm = operations.norm(shape.hidden, EPS)
        gate = operations.gate(shape.inner)
        rotate = operations.rotation(shape.heads + shape.kv_heads, shape.dim)
        weight = torch.rand(shape.hidden)
        x, added = torch.randn(2, rows, shape.hidden).bfloat16().unbind(0)
        gate_up = torch.randn(rows, 2 * shape.inner).bfloat16()
        qkv = torch.randn(rows, shape.heads + 2 * shape.kv_heads, shape.dim).bfloat16()
        angles: tuple[Tensor, Tensor] = (torch.ones(rows, shape.dim).bfloat16(),) * 2

        def run() -> None:
            for _ in range(LAYERS):
                norm(x, weight, added=added)
                rotate(qkv, angles)
                norm(x, weight, added=added)
                gate(gate_up)

        return run

    return in_turns(way(row_operations(torch.bfloat16, CPU)), way(PlainRows(CPU)))


def products_of(shape: Shape, rows: int) -> list[float]:
    """A layer's products by the kernel, and by oneDNN; nothing where there is no kernel."""
    if not has_pair_products():
        return []
    own = partial(BlockedLinear, bfloat16_product())
    library = TiledLinear if torch.cpu._is_amx_tile_supported() else PackedLinear
    heads = shape.heads + 2 * shape.kv_heads
    sizes = [
        (heads * shape.dim, shape.hidden),
        (shape.hidden, shape.heads * shape.dim),
        (2 * shape.inner, shape.hidden),
        (shape.hidden, shape.inner),
    ]

    def way(make: Callable[..., Linear], count: int) -> Callable[[], None]:
        linears = []
        for size in sizes * LAYERS:
            linears.append((make(has_bias=False), torch.randn(count, size[1]).bfloat16()))
            linears[-1][0].weight.put(torch.randn(size).bfloat16())

        def run() -> None:
            for linear, x in linears:
                linear(x)

        return run

    return in_turns(way(own, rows), way(library, max(rows, FEWEST_ROWS)))


def measure(rows_wanted: list[int], length: int) -> Iterator[Measured]:
    """All shapes, all numbers of rows."""
    for shape, rows in product(SHAPES, rows_wanted):
        for what, found in (
            ("attention", attention(shape, rows, length=length)),
            ("between", between(shape, rows)),
            ("products", products_of(shape, rows)),
        ):
            if found:
                kernels, plain = found
                yield Measured(shape.name, rows, what, kernels, plain, plain / kernels)


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--length", type=int, default=256, help="positions of each row")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one object a line")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    table = Table(title=f"a layer of bf16 rows of {given.length} positions, microseconds")
    for column in ("model", "rows", "what", "kernels", "torch", "times as fast"):
        table.add_column(column, justify="left" if column in ("model", "what") else "right")
    with torch.inference_mode():
        for one in measure(given.rows, given.length):
            if given.json:
                print(json.dumps(asdict(one)), flush=True)
            table.add_row(
                one.shape,
                str(one.rows),
                one.what,
                f"{one.kernels_us:,.1f}",
                f"{one.torch_us:,.1f}",
                f"{one.ratio:.1f}",
            )
    if not given.json:
        Console().print(table)


if __name__ == "__main__":
    main()
