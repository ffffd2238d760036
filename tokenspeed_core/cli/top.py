# SPDX-License-Identifier: MIT
"""`tokenspeed top`: a running server, live: its state, requests, cache and speed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tokenspeed_core.cli.parser import command_parser
from tokenspeed_core.cli.running_server import EngineReply, RunningServer, add_server_flags
from tokenspeed_core.errors import ConfigError, EngineError

DESCRIBE = "/engine/describe"
SHORTEST_S = 0.1
ALL, TIER_PREFIX = "all", "cached_tokens_"


@frozen(kw_only=True)
class Glance:
    """One engine at a moment; `tokens_per_s` needs an earlier moment, and an engine that counts.

    `hits` are the shares of all prompt tokens since the engine's start that were cached: "all", and
    by tier where not all were on the device.
    """

    engine: int
    model: str
    state: str
    running: int
    waiting: int
    active_pages: int
    total_pages: int
    tokens_per_s: float | None = None
    hits: Mapping[str, float] | None = None

    @property
    def cache_use(self) -> float:
        """The share of the cache's pages that requests hold."""
        return self.active_pages / self.total_pages if self.total_pages else 0.0

    def as_json(self) -> dict[str, object]:
        """Return it for programs."""
        return {
            "engine": self.engine,
            "model": self.model,
            "state": self.state,
            "running": self.running,
            "waiting": self.waiting,
            "active_pages": self.active_pages,
            "total_pages": self.total_pages,
            "tokens_per_s": self.tokens_per_s,
            "cache_hits": self.hits,
        }


@frozen
class Count:
    """How many tokens an engine had drawn at a time, None where it does not count them."""

    at_s: float
    tokens: int | None

    @classmethod
    def of(cls, reply: EngineReply) -> Count:
        """The count of a description that came just now."""
        counters = reply.values.get("counters")
        tokens = counters.get("completion_tokens") if isinstance(counters, Mapping) else None
        return cls(time.monotonic(), tokens)

    def speed_since(self, earlier: Count | None) -> float | None:
        """Tokens a second since then; an engine that started anew counts from zero."""
        if earlier is None or self.tokens is None or earlier.tokens is None:
            return None
        return max(self.tokens - earlier.tokens, 0) / max(self.at_s - earlier.at_s, 1e-9)


def run(arguments: list[str]) -> int:
    """Run the command until Ctrl-C, or once."""
    given = _parser().parse_args(arguments)
    if given.interval < SHORTEST_S:
        raise ConfigError([f"--interval: expected at least {SHORTEST_S}, got {given.interval}"])
    glances = watch(RunningServer.of(given), interval_s=given.interval)
    if given.once:
        glances = iter([next(glances)])
    if given.json:
        for glance in glances:
            print(json.dumps({"engines": [each.as_json() for each in glance]}), flush=True)
    else:
        _show(glances)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("top", description="Watch a running server; Ctrl-C ends.")
    parser.add_argument("--once", action="store_true", help="show it once and end")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between two looks (1)"
    )
    add_server_flags(parser)
    return parser


def watch(server: RunningServer, *, interval_s: float) -> Iterator[Sequence[Glance]]:
    """Look at every engine again and again."""
    before: Mapping[int, Count] = {}
    while True:
        replies = server.ask(DESCRIBE)
        counts = {index: Count.of(reply) for index, reply in enumerate(replies)}
        yield [
            _glance(index, reply, tokens_per_s=counts[index].speed_since(before.get(index)))
            for index, reply in enumerate(replies)
        ]
        before = counts
        time.sleep(interval_s)


def _glance(index: int, reply: EngineReply, *, tokens_per_s: float | None) -> Glance:
    if not reply.success:
        raise EngineError(f"engine {index} does not describe itself: {reply.message}")
    try:
        model, state, sizes = (reply.values[key] for key in ("model", "state", "sizes"))
        return Glance(
            engine=index,
            model=model["name"],
            state=_state(state),
            running=sizes["prefilling"] + sizes["decoding"],
            waiting=sizes["waiting"],
            active_pages=sizes["active_pages"],
            total_pages=sizes["total_pages"],
            tokens_per_s=tokens_per_s,
            hits=_hits(reply.values.get("counters")),
        )
    except (KeyError, TypeError) as error:
        raise EngineError(f"engine {index} describes itself without {error}") from error


def _hits(counters: Mapping[str, int] | None) -> Mapping[str, float] | None:
    prompts = (counters or {}).get("prompt_tokens")
    if not counters or not prompts:
        return None
    tiers = {
        name.removeprefix(TIER_PREFIX): tokens / prompts
        for name, tokens in counters.items()
        if name.startswith(TIER_PREFIX)
    }
    return {ALL: counters["cached_tokens"] / prompts, **(tiers if len(tiers) > 1 else {})}


def _told(hits: Mapping[str, float] | None) -> str:
    if hits is None:
        return ""
    tiers = (f"\n{tier} {share:.0%}" for tier, share in hits.items() if tier != ALL)
    return "".join([f"\nhits {hits[ALL]:.0%}", *tiers])


def _state(state: Mapping[str, Any]) -> str:
    draining = f", draining for {state['draining']}" if state.get("draining") else ""
    released = f" {', '.join(state['released'])}" if state.get("released") else ""
    return f"{state['name']}{released}{draining}"


def _show(glances: Iterator[Sequence[Glance]]) -> None:
    console = Console()
    if not sys.stdout.isatty():
        for glance in glances:
            console.print(_table(glance))
        return
    with Live(console=console, auto_refresh=False) as live:
        for glance in glances:
            live.update(_table(glance), refresh=True)


def _table(glance: Sequence[Glance]) -> Table:
    table = Table("engine", "model", "state", "running", "waiting", "cache pages", "tokens/s")
    for each in glance:
        pages = f"{each.cache_use:.0%} ({each.active_pages}/{each.total_pages})"
        speed = "" if each.tokens_per_s is None else f"{each.tokens_per_s:.1f}"
        table.add_row(
            str(each.engine),
            each.model,
            each.state,
            str(each.running),
            str(each.waiting),
            pages + _told(each.hits),
            speed,
        )
    return table
