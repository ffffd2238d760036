# SPDX-License-Identifier: MIT
"""Writes down everything a rank's rounds take in, in the order they ask for it.

A round is a function of what its ports give: messages, forwards' results, acknowledgments, what
the ranks agreed on, what stages saw, and the time. The recorder stands between the loop and each
port, passes everything on, and keeps it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import evolve

from tokenspeed_core.composition.plugin_class import IN_PYTHON, LoadedPlugin
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.errors import ConfigError
from tokenspeed_core.loop.parts import LoopParts
from tokenspeed_core.recording.recorded_ports import (
    RecordedFrontend,
    RecordedPlane,
    RecordedRanks,
    RecordedStage,
    recorded_hooks,
)
from tokenspeed_core.recording.tape import Frame, Header, RecordedPlugin, TapeWriter
from tokenspeed_hookspecs import DataPlane, Ranks, RoundTimes

if TYPE_CHECKING:
    from tokenspeed_core.composition.build import Surroundings

REPEATING = frozenset({"m", "p", "x"})  # what an idle round takes in
GROUPS = ("replica", "pp", "dp", "ep")


class Recorder:
    """One rank's recording. Its timekeeper hears of the end of a round, which ends a frame."""

    def __init__(self, tape: TapeWriter, plugins: Sequence[LoadedPlugin]) -> None:
        self._tape = tape
        self._plugins = plugins
        self._config = EngineConfig()
        self._number = 0
        self._events: list[tuple[str, Any]] = []
        self._clocks: list[float] = []
        self._waiting: Frame | None = None

    # --- between the loop and its ports ----------------------------------------------------------

    def around(self, around: Surroundings, config: EngineConfig) -> Surroundings:
        """The same surroundings, listened to."""
        self._config = config
        decode, frontend = around.decode_text, around.frontend
        return evolve(
            around,
            frontend=None if frontend is None else RecordedFrontend(frontend, self.note),
            ranks=RecordedRanks(around.ranks, self.note, self.close),
            decode_text=None if decode is None else self._heard_text(decode),
            clock=self._heard_clock(around.clock),
            timekeepers=(*around.timekeepers, self._end_frame),
            on_parts=(*around.on_parts, self.take),
        )

    def take(self, parts: LoopParts) -> None:
        """Stand between the loop and its device and stages, and write the header."""
        self._tape.header(self._header(parts))
        parts.data_plane = RecordedPlane(parts.data_plane, self.note)
        parts.stages = [RecordedStage(stage, self.note) for stage in parts.stages]
        parts.hooks = recorded_hooks(parts.hooks, self.note)

    def note(self, kind: str, value: object) -> None:
        """Keep what a port gave."""
        self._events.append((kind, value))

    def _heard_clock(self, clock: Callable[[], float]) -> Callable[[], float]:
        clocks = self._clocks

        def now() -> float:
            clocks.append(seconds := clock())
            return seconds

        return now

    def _heard_text(self, decode: Callable[[Sequence[int]], str]) -> Callable[[Sequence[int]], str]:
        def text(token_ids: Sequence[int]) -> str:
            found = decode(token_ids)
            self.note("t", found)
            return found

        return text

    # --- frames ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what the last round took in, and close the file."""
        if self._events:
            self._end_frame()
        if self._waiting is not None:
            self._tape.frame(self._waiting)
            self._waiting = None
        self._tape.close()

    def _end_frame(self, times: RoundTimes | None = None) -> None:
        """End a frame with a round, and hold it back until the next one: an idle engine's rounds
        are one frame."""
        events, clocks = tuple(self._events), tuple(self._clocks)
        self._events.clear()
        self._clocks.clear()
        self._number += 1
        waiting = self._waiting
        if waiting is not None and _is_again(waiting, events):
            # The last time counts: what ends by time has ended before something happens again.
            self._waiting = evolve(waiting, clocks=clocks, repeats=waiting.repeats + 1)
            return
        if waiting is not None:
            self._tape.frame(waiting)
        self._waiting = Frame(self._number, events, clocks)

    def _header(self, parts: LoopParts) -> Header:
        config = evolve(self._config, engine=evolve(self._config.engine, record=None))
        return Header(
            config=config.to_toml(),
            plugins=[_described(plugin) for plugin in self._plugins],
            plane=_device(parts.data_plane),
            rank=parts.ranks.rank,
            world_size=parts.ranks.world_size,
            groups=_groups(parts.ranks),
            has_frontend=parts.frontend is not None,
            has_text=parts.decode_text is not None,
            versions={name: version(name) for name in ("tokenspeed-core", "tokenspeed-scheduler")},
        )


def recorded(
    around: Surroundings, config: EngineConfig, *, plugins: Sequence[LoadedPlugin]
) -> Surroundings:
    """The surroundings of a rank whose configuration asks for a recording. ConfigError: its file
    cannot be written."""
    path, rank = Path(str(config.engine.record)), around.ranks.rank
    if rank:
        path = path.with_suffix(f".{rank}{path.suffix}")
    try:
        tape = TapeWriter(path)
    except OSError as error:
        raise ConfigError([f"engine.record: cannot write {path}: {error.strerror}"]) from error
    return Recorder(tape, plugins).around(around, config)


def _is_again(frame: Frame, events: tuple[tuple[str, Any], ...]) -> bool:
    """Whether a round took in what the frame's did, and nothing but that nothing came."""
    is_idle = all(kind in REPEATING for kind, _ in events)
    return is_idle and frame.number > 1 and tuple(frame.events) == events


def _described(plugin: LoadedPlugin) -> RecordedPlugin:
    options = {key: each for key, each in plugin.options_table().items() if each is not None}
    if plugin.source != IN_PYTHON:
        return RecordedPlugin(plugin.name, options)
    owner = plugin.plugin
    file = inspect.getsourcefile(owner) or ""
    return RecordedPlugin(plugin.name, options, owner.__module__, file, owner.__qualname__)


def _device(plane: DataPlane) -> dict[str, Any]:
    return {
        "kind": plane.kind,
        "model": attrs.asdict(plane.model),
        "num_host_pages": plane.num_host_pages,
        "cache_groups": [attrs.asdict(group) for group in plane.cache_groups],
        "memory_regions": list(plane.memory_regions),
    }


def _groups(ranks: Ranks) -> dict[str, tuple[int, int]]:
    found = {name: getattr(ranks, name) for name in GROUPS}
    return {name: (each.size, each.index) for name, each in found.items() if each is not None}
