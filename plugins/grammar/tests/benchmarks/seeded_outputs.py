# SPDX-License-Identifier: MIT
"""Two hundred seeded texts of a real model at temperature 1, each under one of many schemas.

Every text that ended must parse and be valid; plain requests among them must say what they say in
an engine without the plugin; depth 0 must give the tokens of depth 1, and so must tensor-parallel
ranks for some of the requests, all but a few.

    python plugins/grammar/tests/benchmarks/seeded_outputs.py [--model smollm2-135m] [--tp 3]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
from attrs import evolve, frozen

from tokenspeed_core.models.progress import Silent
from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_core.models.tokenizer import Tokenizer, load_tokenizer
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.streams import Stream
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_core.testing.torch_world import TorchWorld
from tokenspeed_grammar.plugin import GrammarPlugin
from tokenspeed_hookspecs import AddRequest

SCHEMAS = json.loads((Path(__file__).parents[1] / "schemas.json").read_text(encoding="utf-8"))
PLAIN_EVERY, BUDGET = 10, 160
EDGES = 0.05


@frozen
class Texts:
    """A model's requests: every tenth of them plain."""

    tokenizer: Tokenizer
    count: int

    def requests(self) -> list[AddRequest]:
        """All of them."""
        return [self._request(number) for number in range(self.count)]

    def schema_of(self, number: int) -> dict[str, Any] | None:
        """What a text follows, None if it is plain."""
        if number % PLAIN_EVERY == 0:
            return None
        names = list(SCHEMAS)
        found: dict[str, Any] = SCHEMAS[names[number % len(names)]]
        return found

    def _request(self, number: int) -> AddRequest:
        schema = self.schema_of(number)
        prompt = self.tokenizer.encode(f"Number {number} of a list, written as JSON: ")
        budget = BUDGET if schema is not None else 24
        plain = request(f"r{number}", prompt, budget=budget, seed=number, temperature=1.0)
        return plain if schema is None else evolve(plain, features={"json_schema": schema})


def tell(line: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def check_texts(texts: Texts, streams: Sequence[Stream]) -> int:
    """How many of the constrained texts that ended are wrong."""
    ends: Counter[str] = Counter()
    ended: set[int] = set()
    wrong = 0
    for number, stream in enumerate(streams):
        schema = texts.schema_of(number)
        if schema is None:
            continue
        ends[stream.kind or "none"] += 1
        if stream.kind != "stop":
            continue
        ended.add(number % len(SCHEMAS))
        text = texts.tokenizer.decode(stream.tokens)
        try:
            is_valid = jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(
                json.loads(text)
            )
        except ValueError:
            is_valid = False
        if not is_valid:
            wrong += 1
            tell(f"WRONG: {text!r} under {json.dumps(schema)}")
    tell(
        f"constrained texts by their ends: {dict(ends)}; of {len(ended)} of {len(SCHEMAS)} schemas"
    )
    tell(f"ended and wrong: {wrong}")
    return wrong + ends["abort"]


def differing(name: str, left: Sequence[Stream], right: Sequence[Stream]) -> int:
    """How many streams say other tokens, told."""
    count = sum(one.tokens != two.tokens for one, two in zip(left, right, strict=True))
    tell(f"{name}: {count} of {len(left)} streams differ")
    return count


def check_engines(texts: Texts, model: str, *, threads: int, tp: int) -> int:
    """Run the requests in every way; how much is wrong."""
    setup = TorchSetup(
        engine={"model": model, "threads": threads},
        scheduler={"max_batch_size": 16, "num_pages": 2049},
        plugins=(GrammarPlugin,),
        tokenizer=texts.tokenizer,
    )
    found: dict[int, list[Stream]] = {}
    for depth in (1, 0):
        start = time.monotonic()
        with TorchEngine(evolve(setup, depth=depth)) as engine:
            found[depth] = engine.generate(texts.requests())
        tell(f"depth {depth}: {time.monotonic() - start:.0f} s")
    wrong = check_texts(texts, found[1]) + differing("depth 0 and 1", found[1], found[0])
    plain = [number for number in range(texts.count) if texts.schema_of(number) is None]
    requests = texts.requests()
    with TorchEngine(evolve(setup, plugins=())) as engine:
        alone = engine.generate([requests[number] for number in plain])
    wrong += differing("plain requests without the plugin", [found[1][n] for n in plain], alone)
    if tp > 1:
        some = requests[: 2 * len(SCHEMAS)]
        more = {**setup.engine, "tp": tp, "threads": 1}
        with TorchWorld(Topology(tp=tp), evolve(setup, engine=more)) as world:
            ranked = world.generate(some)
        # Ranks add in another order, so a draw on the edge between two tokens may fall otherwise.
        apart = differing(f"tp {tp}", found[1][: len(some)], ranked)
        wrong += apart if apart > len(some) * EDGES else 0
    return wrong


def main() -> None:
    """Run everything; the status is 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=223, help="every tenth is plain")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tp", type=int, default=3, help="ranks; the heads must divide by them")
    given = parser.parse_args()
    texts = Texts(load_tokenizer(resolve_model(given.model, Silent()).path), given.requests)
    sys.exit(check_engines(texts, given.model, threads=given.threads, tp=given.tp) > 0)


if __name__ == "__main__":
    main()
