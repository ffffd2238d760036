# SPDX-License-Identifier: MIT
"""Speed of the bare decoder against `transformers` in the same run; prints ratios.

Greedy, bf16, all streams in one batch from prompts of equal length, no scheduler and no loop: what
the whole engine can at most reach. Run as a script; `--json` prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from attrs import define

from tokenspeed_core.models.resolve import ModelFolder, resolve_model
from tokenspeed_core.torch_plane.decoder import Decoder
from tokenspeed_core.torch_plane.host_memory import keep_freed_memory
from tokenspeed_core.torch_plane.inputs import ForwardInputs
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache

PAGE_SIZE = 16
CHUNK_TOKENS = 2048
CPU = torch.device("cpu")


@define
class Timing:
    """Seconds to the first token of all streams, seconds for all tokens, median step in ms."""

    first: float
    whole: float
    step_ms: float


class BareDecoder:
    """The decoder driven in lock step."""

    def __init__(self, model: ModelFolder, *, num_positions: int) -> None:
        self._decoder = Decoder(
            model.config, model.open_weights(), dtype=torch.bfloat16, device=CPU
        )
        self._cache = PagedKVCache(
            model.config,
            1 + num_positions // PAGE_SIZE,
            page_size=PAGE_SIZE,
            dtype=torch.bfloat16,
            device=CPU,
        )

    def generate(self, prompts: torch.Tensor, *, new_tokens: int) -> tuple[Timing, torch.Tensor]:
        """Continue prompts int64 [streams, length]; returns also the tokens [streams, new]."""
        rows, length = prompts.shape
        table = _table(rows, length + new_tokens)
        began = time.perf_counter()
        last = self._prefill(prompts, table=table)
        found, times = [last], [time.perf_counter()]
        for position in range(length, length + new_tokens - 1):
            last = self._forward(last, position, table=table, lengths=[1] * rows)
            found.append(last)
            times.append(time.perf_counter())
        steps = np.diff(times) * 1e3
        median = float(np.median(steps)) if len(steps) else 0.0
        return Timing(times[0] - began, times[-1] - began, median), torch.stack(found, 1)

    def _prefill(self, prompts: torch.Tensor, *, table: np.ndarray[Any, Any]) -> torch.Tensor:
        rows, length = prompts.shape
        many = max(1, CHUNK_TOKENS // length)
        parts = []
        for row in range(0, rows, many):
            some = prompts[row : row + many]
            lengths = [length] * len(some)
            parts.append(self._forward(some.flatten(), 0, table=table[row:], lengths=lengths))
        return torch.cat(parts)

    def _forward(
        self,
        tokens: torch.Tensor,
        start: int,
        *,
        table: np.ndarray[Any, Any],
        lengths: Sequence[int],
    ) -> torch.Tensor:
        """Feed every row the tokens of positions from `start` on; the likeliest next tokens."""
        rows, fed = len(lengths), lengths[0]
        inputs = ForwardInputs(
            token_ids=tokens,
            positions=torch.arange(start, start + fed).repeat(rows),
            row_lengths=list(lengths),
            context_lengths=[start + fed] * rows,
            num_extends=rows if fed > 1 else 0,
            block_table=table[:rows],
            logit_rows=torch.arange(1, rows + 1) * fed - 1,
        )
        return _likeliest(self._decoder.forward(inputs, self._cache))


class Reference:
    """`generate` of transformers: a static batch with its own cache."""

    def __init__(self, model: ModelFolder) -> None:
        import transformers

        load = transformers.AutoModelForCausalLM.from_pretrained
        self._model: Any = load(model.path, dtype=torch.bfloat16).eval()

    def generate(self, prompts: torch.Tensor, *, new_tokens: int) -> tuple[float, torch.Tensor]:
        """Seconds for all tokens, and the tokens [streams, new]."""
        began = time.perf_counter()
        found: torch.Tensor = self._model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - began, found[:, prompts.shape[1] :]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--long-prompt", type=int, default=2048, help="0 leaves it out")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help="without the reference")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    keep_freed_memory()
    model = resolve_model(chosen.model)
    largest = max([*chosen.streams, 1]) * (chosen.prompt + chosen.output + PAGE_SIZE)
    ours = BareDecoder(model, num_positions=max(largest, chosen.long_prompt + 2 * PAGE_SIZE))
    theirs = None if chosen.alone else Reference(model)
    cases = [(streams, chosen.prompt, chosen.output) for streams in chosen.streams]
    if chosen.long_prompt:
        cases.append((1, chosen.long_prompt, 1))
    results = [
        _measure(ours, theirs, case=case, vocab=model.config.vocab_size, repeats=chosen.repeats)
        for case in cases
    ]
    if chosen.json:
        sys.stdout.write(json.dumps(results) + "\n")
        return 0
    for result in results:
        sys.stdout.write("  ".join(f"{name} {value:g}" for name, value in result.items()) + "\n")
    return 0


def _measure(
    ours: BareDecoder,
    theirs: Reference | None,
    *,
    case: tuple[int, int, int],
    vocab: int,
    repeats: int,
) -> dict[str, float]:
    """The best of some runs of each, in turns, because other work only ever slows a run."""
    streams, prompt, output = case
    torch.manual_seed(streams)
    prompts = torch.randint(vocab, (streams, prompt))
    ours.generate(prompts[:, :32], new_tokens=3)
    mine, other = [], []
    for _ in range(repeats):
        mine.append(ours.generate(prompts, new_tokens=output)[0])
        if theirs is not None:
            other.append(theirs.generate(prompts, new_tokens=output)[0])
    best = min(timing.whole for timing in mine)
    found: dict[str, float] = {
        "streams": streams,
        "prompt": prompt,
        "output": output,
        "tokens_per_s": round(streams * output / best, 1),
        "first_token_s": round(min(timing.first for timing in mine), 3),
        "step_ms": round(min(timing.step_ms for timing in mine), 2),
    }
    if other:
        found["reference_s"] = round(min(other), 3)
        found["times_reference_speed"] = round(min(other) / best, 2)
        found["share_of_reference_time"] = round(best / min(other), 2)
    return found


def _likeliest(logits: torch.Tensor) -> torch.Tensor:
    """Argmax over the vocabulary in two steps: `argmax` of a long row is slow on the CPU."""
    if logits.shape[1] % 256:
        return logits.argmax(-1)
    parts = logits.view(len(logits), -1, 256)
    best = parts.amax(-1).argmax(-1)
    within = parts[torch.arange(len(logits)), best].argmax(-1)
    return best * 256 + within


def _table(rows: int, positions: int) -> np.ndarray[Any, Any]:
    """Every row its own pages, from 1 on."""
    width = -(-positions // PAGE_SIZE)
    return np.arange(1, 1 + rows * width, dtype=np.int32).reshape(rows, width)


if __name__ == "__main__":
    sys.exit(main())
