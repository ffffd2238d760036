# SPDX-License-Identifier: MIT
"""Running a recording: the same loop, scheduler and plugins, on what the tape has."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from attrs import asdict, evolve, field, frozen

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.built_in import BUILT_IN
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.composition.selection import Chosen, PluginChoice
from tokenspeed_core.config import EngineConfig, from_tables
from tokenspeed_core.errors import EngineError
from tokenspeed_core.loop.parts import LoopParts
from tokenspeed_core.recording.replayed_ports import (
    ReplayedFrontend,
    ReplayedPlane,
    ReplayedRanks,
    ReplayedStage,
    ReplayPartedError,
    Tape,
    replayed_hooks,
)
from tokenspeed_core.recording.tape import Frame, Header, RecordedPlugin, read
from tokenspeed_hookspecs import Plugin, Tokenizer

DEFAULT_FILES = frozenset({"trace"})  # writes a file of its own; a replay names its own


@frozen(kw_only=True)
class Replayed:
    """What a replay came to; `parted` says where it was not the recording any more, `failure` how
    the engine ended by itself, as the recorded one did."""

    rounds: int
    requests: int
    tokens: int
    replies: int
    ends: Mapping[str, int] = field(factory=dict)
    parted: str = ""
    failure: str = ""
    unreplayed: int = 0  # rounds after the file was full
    is_whole: bool = True  # the file has the end that an engine writes when it stops

    def as_map(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def replay(path: Path, *, until: int | None = None, plugins: Sequence[Chosen] = ()) -> Replayed:
    """Run a recording to its end, or up to a round; `plugins` watch it besides the recorded ones.

    EngineError if the file is no recording, CompositionError if its plugins are not here.
    """
    header, frames = read(path)
    run = _Run(header, plugins)
    try:
        for frame in frames:
            run.repeat(frame, until=until)
    finally:
        found = run.end()
    return evolve(found, is_whole=frames.is_whole)


class _Run:
    """One replay, round by round."""

    def __init__(self, header: Header, plugins: Sequence[Chosen]) -> None:
        self.rounds = 0
        self._header = header
        self._plugins = plugins
        self._tape = Tape()
        self._frontend = ReplayedFrontend(self._tape)
        self._rank: Rank | None = None
        self._unreplayed = 0
        self._parted = self._failure = ""

    def repeat(self, frame: Frame, *, until: int | None) -> None:
        """Run the rounds that took in a frame, as far as they are asked for."""
        for _ in range(frame.repeats):
            if until is not None and self.rounds >= until:
                return
            self.round(frame)

    def round(self, frame: Frame) -> None:
        """Run a round on a frame, unless the replay ended before it."""
        if frame.beyond:
            self._unreplayed += 1
        elif not self._parted and not self._failure:
            self.rounds += 1
            self._attempt(partial(self._round, frame))

    def end(self) -> Replayed:
        """Stop the rank; what it came to."""
        if not self._failure and not self._parted:
            self._attempt(self._tape.expect_end)
        if self._rank is not None:
            self._rank.stop()
        frontend = self._frontend
        return Replayed(
            rounds=self.rounds,
            requests=frontend.num_requests,
            tokens=frontend.num_tokens,
            replies=frontend.num_replies,
            ends=frontend.ends,
            parted=self._parted,
            failure=self._failure,
            unreplayed=self._unreplayed,
        )

    def _round(self, frame: Frame) -> None:
        self._tape.load(frame, self.rounds)
        if self._rank is None:
            self._rank = _composed(
                self._header, self._tape, frontend=self._frontend, plugins=self._plugins
            )
        self._rank.loop.round()

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except EngineError as error:
            # A stage or a plugin may have been on the way, and have its name on what came through.
            parted = next((e for e in _causes(error) if isinstance(e, ReplayPartedError)), None)
            if parted is not None:
                self._parted = str(parted)
            else:
                self._failure = str(error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _composed(
    header: Header, tape: Tape, *, frontend: ReplayedFrontend, plugins: Sequence[Chosen]
) -> Rank:
    """The recorded rank between the tape's ports."""
    config = _config(header)
    recorded = [_choice(each) for each in header.plugins if each.name not in DEFAULT_FILES]
    around = Surroundings(
        frontend=frontend if header.has_frontend else None,
        ranks=ReplayedRanks(tape, header),
        decode_text=(lambda token_ids: str(tape.take("t"))) if header.has_text else None,
        tokenizer=_tokenizer(config, header),
        make_data_plane=lambda config, options, **seat: ReplayedPlane(tape, header.plane),
        clock=tape.clock,
        sleep=lambda seconds: None,
        on_parts=(partial(_stand_between, tape),),
        is_replay=True,
    )
    rank = build_rank(config, [*recorded, *plugins], surroundings=around)
    rank.start()
    return rank


def _stand_between(tape: Tape, parts: LoopParts) -> None:
    parts.stages = [ReplayedStage(stage, tape) for stage in parts.stages]
    parts.hooks = replayed_hooks(parts.hooks, tape)


def _config(header: Header) -> EngineConfig:
    """The recorded configuration; its plugins are chosen one by one, with the options they had."""
    config = from_tables(tomllib.loads(header.config))
    return evolve(config, plugins=(), optional=(), without=tuple(BUILT_IN), tables={})


def _choice(plugin: RecordedPlugin) -> PluginChoice:
    if not plugin.module:
        return PluginChoice(plugin.name, plugin.options)
    return PluginChoice(_imported(plugin), plugin.options)


def _imported(plugin: RecordedPlugin) -> type[Plugin]:
    """A class that the recorded engine was given in Python. EngineError if it is not here."""
    try:
        found: object = importlib.import_module(plugin.module)
    except ImportError as error:
        spec = importlib.util.spec_from_file_location(plugin.module, plugin.file)
        if spec is None or spec.loader is None or not Path(plugin.file).exists():
            raise EngineError(f"plugin {plugin.name!r} is not here: {error}") from error
        found = sys.modules[plugin.module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    for name in plugin.class_name.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, type):
        raise EngineError(f"plugin {plugin.name!r} is not in {plugin.module}: {plugin.class_name}")
    return cast("type[Plugin]", found)


def _tokenizer(config: EngineConfig, header: Header) -> Tokenizer | None:
    """The model's vocabulary, which only plugins of others may ask for."""
    if not header.has_text or all(each.name in BUILT_IN for each in header.plugins):
        return None
    from tokenspeed_core.model_tokenizer import model_tokenizer

    return model_tokenizer(config, None)


def last_frames(path: Path, count: int) -> list[Frame]:
    """The last frames of a recording, also those past what can be replayed."""
    _, frames = read(path)
    return list(deque(frames, maxlen=count))
