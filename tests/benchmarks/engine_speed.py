# SPDX-License-Identifier: MIT
"""The whole engine against `transformers` generate on the same weights, in one run.

Rows of random tokens, greedy, end tokens ignored, bf16. Each repeat takes new prompts, so that no
prefix is ever hit, and the two sides take turns. Printed are medians and their ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
import transformers
from attrs import asdict, define
from rich.console import Console
from rich.table import Table

from tokenspeed_core import LocalEngine, compose
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


def timed(run: Callable[[Prompts], int], prompts: Prompts, expected: int) -> float:
    """Seconds of one run, which must make as many tokens as it was asked for."""
    start = time.perf_counter()
    made = run(prompts)
    seconds = time.perf_counter() - start
    assert made == expected, f"expected {expected} tokens, got {made}"
    return seconds


def measure(
    case: Case, engine: LocalEngine, reference: transformers.PreTrainedModel, *, repeats: int
) -> Measured:
    """Time both sides in turn, each repeat on new prompts."""
    source = torch.Generator().manual_seed(case.rows)

    def ours(prompts: Prompts) -> int:
        done = engine.generate(
            prompts, max_new_tokens=case.output, temperature=0.0, ignore_eos=True
        )
        return sum(len(one.token_ids) for one in done)

    def theirs(prompts: Prompts) -> int:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            found = reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=case.output,
                do_sample=False,
                eos_token_id=-1,
                pad_token_id=0,
            )
        return int(found[:, ids.shape[1] :].numel())

    vocab = reference.config.vocab_size
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for repeat in range(repeats + 1):
        for name, run in (("ours", ours), ("theirs", theirs)):
            drawn = torch.randint(10, vocab, (case.rows, case.prompt), generator=source)
            seconds = timed(run, drawn.tolist(), case.rows * case.output)
            if repeat:  # the first is a warm-up
                times[name].append(seconds)
    mine, other = (statistics.median(times[name]) for name in ("ours", "theirs"))
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
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    sys.setswitchinterval(1e-4)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        resolve_model(given.model).path, dtype=torch.bfloat16
    ).eval()
    results = []
    with compose(given.model, dtype="bfloat16", threads=given.threads) as engine:
        for case in cases(given.loads):
            results.append(measure(case, engine, reference, repeats=given.repeats))
            if given.json:
                print(json.dumps(asdict(results[-1])), flush=True)
    if not given.json:
        show(results)


if __name__ == "__main__":
    main()
