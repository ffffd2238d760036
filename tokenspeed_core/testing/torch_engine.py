# SPDX-License-Identifier: MIT
"""One rank that runs a real model on the torch plane, driven until its requests have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.selection import Chosen
from tokenspeed_core.config import EngineConfig, EngineSection, SchedulerSection
from tokenspeed_core.testing.scripted_frontend import ManualFrontend
from tokenspeed_core.testing.streams import Stream
from tokenspeed_hookspecs import AddRequest, ControlReply, ControlRequest, Tokenizer

MAX_ROUNDS = 100_000
SETTLING_ROUNDS = 5


@define(kw_only=True)
class TorchSetup:
    """What differs from the usual small engine: fp32 on the CPU, page 16, 8 requests at a time.

    `scheduler`, `engine` and `data_plane` are options by name, `tables` those of plugins; `model`
    is an object to run instead of a named one.
    """

    model: object = None
    depth: int = 1
    engine: Mapping[str, Any] = field(factory=dict)
    scheduler: Mapping[str, Any] = field(factory=dict)
    data_plane: Mapping[str, Any] = field(factory=dict)
    plugins: tuple[Chosen, ...] = ()
    tables: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    tokenizer: Tokenizer | None = None

    def config(self) -> EngineConfig:
        """The engine's configuration."""
        engine = {"dtype": "float32", "device": "cpu", "depth": self.depth, **self.engine}
        scheduler = {
            "page_size": 16,
            "num_pages": 513,
            "max_batch_size": 8,
            "max_scheduled_tokens": 256,
            **self.scheduler,
        }
        return EngineConfig(
            engine=EngineSection(**engine),
            scheduler=SchedulerSection(**scheduler),
            without=("batch_log", "finish_line"),
            tables=self.tables,
            data_plane={**self.data_plane, **({"model": self.model} if self.model else {})},
        )


class TorchEngine:
    """A started rank, as a context manager."""

    def __init__(self, setup: TorchSetup) -> None:
        self.frontend = ManualFrontend()
        self.rank = build_rank(
            setup.config(),
            setup.plugins,
            surroundings=Surroundings(frontend=self.frontend, tokenizer=setup.tokenizer),
        )

    def __enter__(self) -> TorchEngine:
        self.rank.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.rank.stop()

    def generate(
        self, requests: Sequence[AddRequest], *, at_once: int | None = None
    ) -> list[Stream]:
        """Run requests, at most so many at a time, to their ends; their streams in order."""
        waiting = deque(requests)
        width = len(requests) if at_once is None else at_once
        for _ in range(MAX_ROUNDS):
            for _ in range(min(len(waiting), width - len(self.rank.loop.requests))):
                self.frontend.put(waiting.popleft())
            self.rank.loop.round()
            if not waiting and not len(self.rank.loop.requests):
                return [self.frontend.received[request.request_id] for request in requests]
        raise AssertionError(f"still running after {MAX_ROUNDS} rounds")

    def ask(self, name: str, **arguments: object) -> ControlReply:
        """Ask an engine without requests for a control operation, and run until it is answered."""
        # What has ended is still in flight for some rounds, and pins its pages.
        for _ in range(SETTLING_ROUNDS):
            self.rank.loop.round()
        replies = self.frontend.received.replies
        before = len(replies)
        self.frontend.put(ControlRequest(name, arguments))
        for _ in range(MAX_ROUNDS):
            self.rank.loop.round()
            if len(replies) > before:
                return replies[before]
        raise AssertionError(f"{name} was not answered after {MAX_ROUNDS} rounds")
