# SPDX-License-Identifier: MIT
"""What constraints cost: tokens/s with and without, time to the first token, and `transformers`.

Rows of natural prompts, greedy, a schema that does not end within the output. The sides take turns
in one process; printed are medians and their ratios. `transformers` runs the same weights with the
same library's masks in a logits processor.

    python plugins/grammar/tests/benchmarks/grammar_speed.py [--rows 16] [--output 128]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import llguidance
import numpy as np
import torch
import transformers
from attrs import frozen
from rich.console import Console
from rich.table import Table

from tokenspeed_core import LocalEngine, compose
from tokenspeed_core.models.progress import Silent
from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_grammar.backend import Vocabulary
from tokenspeed_grammar.llguidance_backend import _tokenizer
from tokenspeed_grammar.torch_extension import apply_mask

MODEL = "smollm2-135m"
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMA = json.dumps({"type": "array", "items": ITEM, "minItems": 1000})


@frozen
class Load:
    """So many rows of so many new tokens, this often."""

    rows: int
    output: int
    repeats: int

    def prompts(self, engine: LocalEngine, turn: int) -> list[list[int]]:
        """Prompts that nothing before began like."""
        texts = [f"{turn} {row}: a list of people as JSON, with ages. " for row in range(self.rows)]
        assert engine.tokenizer is not None, "the model has one"
        return [engine.tokenizer.encode(text) for text in texts]


def engine_seconds(engine: LocalEngine, load: Load, *, turn: int, **wishes: Any) -> float:
    """How long the engine takes for one load, all rows at once."""
    prompts = load.prompts(engine, turn)
    start = time.perf_counter()
    done = engine.generate(
        prompts, max_new_tokens=load.output, temperature=0.0, ignore_eos=True, **wishes
    )
    seconds = time.perf_counter() - start
    assert all(len(each.token_ids) == load.output for each in done), "no text ended early"
    return seconds


class Constraint:
    """The library's masks, as a logits processor."""

    def __init__(self, tokenizer: llguidance.LLTokenizer, rows: int) -> None:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(SCHEMA)
        first = llguidance.LLMatcher(tokenizer, grammar)
        self._matchers = [first.deep_copy() for _ in range(rows)]
        self._has_begun = False

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Advance by the last tokens, and mask."""
        mask = np.zeros((len(self._matchers), (scores.shape[1] + 31) // 32), dtype=np.int32)
        for row, matcher in enumerate(self._matchers):
            if self._has_begun:
                matcher.consume_token(int(input_ids[row, -1]))
            pointer = mask.ctypes.data + row * mask.strides[0]
            matcher.unsafe_compute_mask_ptr(pointer, mask.strides[0])
        self._has_begun = True
        apply_mask(scores, mask, rows=range(len(mask)))
        return scores


def transformers_seconds(
    load: Load, prompts: list[list[int]], model: Any, vocabulary: Any
) -> float:
    """How long `transformers` takes for the same."""
    width = max(map(len, prompts))
    rows = torch.tensor([[0] * (width - len(each)) + each for each in prompts])
    attention = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts])
    constraint = Constraint(vocabulary, load.rows)
    start = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            rows,
            attention_mask=attention,
            max_new_tokens=load.output,
            min_new_tokens=load.output,
            do_sample=False,
            logits_processor=transformers.LogitsProcessorList([constraint]),
        )
    return time.perf_counter() - start


def first_token_ms(engine: LocalEngine, *, turn: int, **wishes: Any) -> float:
    """The time to the first token of one request."""
    (prompt,) = Load(1, 1, 1).prompts(engine, turn)
    start = time.perf_counter()
    for _ in engine.stream(prompt, max_new_tokens=1, temperature=0.0, **wishes):
        pass
    return (time.perf_counter() - start) * 1000


def medians(load: Load, sides: dict[str, Callable[[int], float]]) -> dict[str, float]:
    """The sides' medians; they take turns."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(load.repeats):
        for place, (name, side) in enumerate(sides.items()):
            found[name].append(side(1000 * place + turn))
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    load = Load(given.rows, given.output, given.repeats)
    folder = resolve_model(MODEL, Silent()).path
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    features = {"features": {"json_schema": SCHEMA}}
    with compose(MODEL, plugins=["grammar"], max_batch_size=load.rows) as engine:
        assert engine.tokenizer is not None, "the model has one"
        vocabulary = _tokenizer(Vocabulary(engine.tokenizer, model.config.vocab_size, (2,)))
        engine_seconds(engine, load, turn=90_000, **features)
        sides = {
            "plain": lambda turn: engine_seconds(engine, load, turn=turn),
            "constrained": lambda turn: engine_seconds(engine, load, turn=turn, **features),
            "transformers": lambda turn: transformers_seconds(
                load, load.prompts(engine, turn), model, vocabulary
            ),
        }
        seconds = medians(load, sides)
        firsts = medians(
            Load(1, 1, 4 * load.repeats),
            {
                "plain": lambda turn: first_token_ms(engine, turn=10_000 + turn),
                "constrained": lambda turn: first_token_ms(engine, turn=20_000 + turn, **features),
            },
        )
    table = Table("", "tokens/s", "of plain")
    for name, value in seconds.items():
        speed = load.rows * load.output / value
        table.add_row(name, f"{speed:.0f}", f"{seconds['plain'] / value:.2f}")
    console = Console()
    console.print(table)
    console.print(
        f"constrained over transformers: {seconds['transformers'] / seconds['constrained']:.2f}"
    )
    told = ", ".join(f"{name} {value:.1f}" for name, value in firsts.items())
    console.print(f"first token, ms: {told}")


if __name__ == "__main__":
    main()
