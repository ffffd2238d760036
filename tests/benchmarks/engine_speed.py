# SPDX-License-Identifier: MIT
"""The whole engine against `transformers` generate on the same weights, in one run.

Rows of random tokens, greedy, end tokens ignored, bf16. Each repeat takes new prompts, so that no
prefix is ever hit; the sides take turns, each in a process of its own. Printed are medians and
their ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
import transformers
from attrs import asdict, define
from rich.console import Console
from rich.table import Table

from tokenspeed_core import compose
from tokenspeed_core.models.resolve import resolve_model

FLOORS = {"1 stream": 2.5, "16 streams": 2.5, "64 streams": 2.7, "first token of 2,048": 1 / 0.8}
Prompts = list[list[int]]


@define
class Case:
    """A load: so many rows of `prompt` tokens, `output` new ones each."""

    name: str
    rows: int
    prompt: int
    output: int


@define
class Measured:
    """Medians of one load in seconds, and how many times faster the engine is."""

    name: str
    engine_s: float
    transformers_s: float
    engine_tokens_s: float
    transformers_tokens_s: float
    ratio: float
    at_least: float


def cases(wanted: list[str]) -> Iterator[Case]:
    """The loads asked for by name: a number of streams, or ttft."""
    for name in wanted:
        if name == "ttft":
            yield Case("first token of 2,048", 1, 2048, 1)
        else:
            rows = int(name)
            yield Case(f"{rows} stream{'s' if rows > 1 else ''}", rows, 128, 128)


class Side:
    """One side in a process of its own, so that their threads never share a core's caches at once.

    It reads a load a line and answers with its seconds.
    """

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--side", name, "--model", given.model]
        command += ["--threads", str(given.threads)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def seconds(self, prompts: Prompts, output: int) -> float:
        """How long it took for so many tokens a prompt."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([prompts, output]) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(run: Callable[[Prompts, int], int]) -> None:
    """Answer loads from standard input with seconds, until it closes."""
    for line in sys.stdin:
        prompts, output = json.loads(line)
        start = time.perf_counter()
        made = run(prompts, output)
        seconds = time.perf_counter() - start
        expected = len(prompts) * output
        assert made == expected, f"expected {expected} tokens, got {made}"
        print(seconds, flush=True)


def serve_engine(given: argparse.Namespace) -> None:
    """The engine's side."""
    sys.setswitchinterval(1e-4)
    with compose(given.model, dtype="bfloat16", threads=given.threads) as engine:

        def run(prompts: Prompts, output: int) -> int:
            done = engine.generate(prompts, max_new_tokens=output, temperature=0.0, ignore_eos=True)
            return sum(len(one.token_ids) for one in done)

        serve(run)


def serve_reference(given: argparse.Namespace) -> None:
    """The side of `transformers`: one static batch."""
    torch.set_num_threads(given.threads)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        resolve_model(given.model).path, dtype=torch.bfloat16
    ).eval()

    @torch.inference_mode()
    def run(prompts: Prompts, output: int) -> int:
        ids = torch.tensor(prompts)
        found = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=output,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
        )
        return int(found[:, ids.shape[1] :].numel())

    serve(run)


def measure(case: Case, sides: dict[str, Side], *, repeats: int, vocab: int) -> Measured:
    """Time both sides in turn, each repeat on new prompts."""
    source = torch.Generator().manual_seed(case.rows)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, side in sides.items():
            drawn = torch.randint(10, vocab, (case.rows, case.prompt), generator=source)
            seconds = side.seconds(drawn.tolist(), case.output)
            if repeat:  # the first is a warm-up
                times[name].append(seconds)
    mine, other = (statistics.median(times[name]) for name in ("engine", "transformers"))
    made = case.rows * case.output
    floor = FLOORS.get(case.name, 1.0)
    return Measured(case.name, mine, other, made / mine, made / other, other / mine, floor)


def show(results: list[Measured]) -> None:
    """Print a table."""
    table = Table(title="engine against transformers, bf16, prompt 128, output 128")
    for column in ("load", "engine", "transformers", "times as fast", "at least"):
        table.add_column(column, justify="left" if column == "load" else "right")
    for one in results:
        style = "green" if one.ratio >= one.at_least else "red"
        table.add_row(
            one.name,
            f"{one.engine_tokens_s:,.1f} tok/s, {one.engine_s:.2f} s",
            f"{one.transformers_tokens_s:,.1f} tok/s, {one.transformers_s:.2f} s",
            f"[{style}]{one.ratio:.2f}",
            f"{one.at_least:.2f}",
        )
    Console().print(table)


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loads", nargs="*", default=["1", "16", "64", "ttft"])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--side", choices=("engine", "transformers"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side is not None:
        (serve_engine if given.side == "engine" else serve_reference)(given)
        return
    vocab = resolve_model(given.model).config.vocab_size
    sides = {name: Side(name, given) for name in ("engine", "transformers")}
    results = []
    for case in cases(given.loads):
        results.append(measure(case, sides, repeats=given.repeats, vocab=vocab))
        if given.json:
            print(json.dumps(asdict(results[-1])), flush=True)
    for side in sides.values():
        side.close()
    if not given.json:
        show(results)


if __name__ == "__main__":
    main()
