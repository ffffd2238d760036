# SPDX-License-Identifier: MIT
"""Composing one rank: plugins, settings, drivers, extensions, loop; in this order.

Plugins change the scheduler's settings before anything is built from them. The data plane is built
before the scheduler, because its model says which cache groups there are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from attrs import evolve, field, frozen

from tokenspeed_core.composition.describe import DESCRIBE, describing
from tokenspeed_core.composition.drivers import DATA_PLANES, SCHEDULERS, pick_driver
from tokenspeed_core.composition.plugin_set import PluginSet, make_plugins
from tokenspeed_core.composition.quarantine import Quarantine
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.composition.rank_engine import RankEngine
from tokenspeed_core.composition.resolve import Resolved, resolve
from tokenspeed_core.composition.round_hooks import RoundHooks, freeze
from tokenspeed_core.composition.selection import Chosen
from tokenspeed_core.composition.timing import Calls, InstrumentedTime, TimedStage, WatchedLoop
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.errors import CompositionError, ConfigError
from tokenspeed_core.loop.event_loop import EventLoop
from tokenspeed_core.loop.operations import OWN_NAMES
from tokenspeed_core.loop.parts import LoopParts, LoopSettings
from tokenspeed_core.ranks.membership import Membership
from tokenspeed_core.ranks.single import SingleRank
from tokenspeed_core.requests.finish import DecodeText
from tokenspeed_core.requests.ingress import IngressLimits
from tokenspeed_hookspecs import (
    AdmissionStage,
    ControlOperation,
    DataPlane,
    Frontend,
    SchedulerDriver,
    SchedulerSettings,
    Timekeeper,
    Tokenizer,
)


@frozen(kw_only=True)
class Surroundings:
    """What a rank is given besides its configuration; `make_data_plane` and `make_scheduler` stand
    in for the drivers that the configuration names, and are called alike. `on_parts` are called
    with what the loop is made of, to stand between it and its ports. In a replay plugins ask
    nothing outside."""

    frontend: Frontend | None = None
    ranks: Membership = field(factory=SingleRank)
    decode_text: DecodeText | None = None
    tokenizer: Tokenizer | None = None
    make_data_plane: Callable[..., DataPlane] | None = None
    make_scheduler: Callable[[SchedulerSettings], SchedulerDriver] | None = None
    clock: Callable[[], float] = time.monotonic
    timekeepers: Sequence[Timekeeper] = ()
    on_parts: Sequence[Callable[[LoopParts], None]] = ()
    is_replay: bool = False
    sleep: Callable[[float], None] = time.sleep
    log: logging.Logger = field(factory=lambda: logging.getLogger("tokenspeed"))


def build_rank(
    config: EngineConfig,
    plugins: Sequence[Chosen] = (),
    *,
    surroundings: Surroundings | None = None,
) -> Rank:
    """Compose a rank that `Rank.start` can start; CompositionError lists what is wrong."""
    return build_resolved(config, resolve(config, plugins), surroundings=surroundings)


def build_resolved(
    config: EngineConfig, resolved: Resolved, *, surroundings: Surroundings | None = None
) -> Rank:
    """Compose a rank from resolved plugins, as each of several ranks in a process does."""
    around = surroundings or Surroundings()
    if config.engine.record is not None:
        from tokenspeed_core.recording.recorder import recorded

        around = recorded(around, config, plugins=resolved.loaded)
    engine = RankEngine(around.clock, around.log, around.ranks, around.tokenizer, around.is_replay)
    plugins = make_plugins(resolved.loaded, resolved.failed, engine=engine)
    try:
        return _compose(config, plugins, around=around, engine=engine)
    except BaseException:
        plugins.stop()
        raise


def _compose(
    config: EngineConfig, plugins: PluginSet, *, around: Surroundings, engine: RankEngine
) -> Rank:
    _check_config(plugins, config)
    found = [answer.value for answer in plugins.ask("instruments") if answer.value is not None]
    if found:
        engine.instruments = found[0]
    settings = config.scheduler.settings()
    plugins.ask("configure_scheduler", settings=settings)
    build = _Build(evolve(config, scheduler=config.scheduler.changed(settings)), around, plugins)
    plane = build.data_plane()
    try:
        return build.rank(engine, plane, settings=settings)
    except BaseException:
        plane.stop()
        raise


def _check_config(plugins: PluginSet, config: EngineConfig) -> None:
    """Ask every plugin for its problems; an optional one that has some is dropped."""
    tables = config.as_tables()
    tables.update((member.name, member.options_table()) for member in plugins.members)
    problems: dict[str, list[str]] = {}
    for answer in plugins.ask_for_lists("check_config", config=tables):
        text = f"plugin {answer.plugin!r}: {answer.value}"
        problems.setdefault(answer.plugin, []).append(text)
    required = {member.name: member.is_required for member in plugins.members}
    for name in [name for name in problems if not required.get(name, True)]:
        plugins.drop(name, problems.pop(name))
    if problems:
        raise CompositionError([text for texts in problems.values() for text in texts])


@frozen
class _Build:
    """A rank on its way: the configuration as the plugins left it, and who takes part."""

    config: EngineConfig
    around: Surroundings
    plugins: PluginSet

    def data_plane(self) -> DataPlane:
        options = dict(self.config.data_plane)
        self.plugins.ask("configure_model", options=options)
        make = self.around.make_data_plane or pick_driver(
            DATA_PLANES, self.config.engine.data_plane, option="engine.data_plane"
        )
        seat = self.around.ranks.seat
        more = {} if seat is None else {"seat": seat}
        plane: DataPlane = make(self.config, options, **more)
        return plane

    def rank(self, engine: RankEngine, plane: DataPlane, *, settings: SchedulerSettings) -> Rank:
        settings.groups = settings.groups or tuple(plane.cache_groups)
        if settings.host_bytes:
            settings.host_pages = self._host_pages(plane)
        make = self.around.make_scheduler or pick_driver(
            SCHEDULERS, self.config.engine.scheduler, option="engine.scheduler"
        )
        scheduler: SchedulerDriver = make(settings)
        engine.bind_drivers(scheduler, plane)
        extensions = self.plugins.ask_for_lists("extend_data_plane", plane=plane)
        quarantine = Quarantine(self.around.log, engine.instruments)
        keepers = self._timekeepers(engine)
        calls: Calls | None = [] if keepers else None
        hooks = freeze(self.plugins.manager, quarantine, noted=calls)
        operations = self._operations()
        operations[DESCRIBE] = describing(self.config, self.plugins.members, engine=engine)
        parts = self._parts(scheduler, plane, hooks=hooks, operations=operations)
        parts.stages = self._stages(calls)
        for stand_between in self.around.on_parts:
            stand_between(parts)
        loop = EventLoop(parts)
        if calls is not None:
            loop = WatchedLoop(parts, keepers, calls=calls)
        engine.bind_loop(loop)
        self.around.ranks.where.ask = lambda: (
            f"round {loop.last_round.number}, phase {loop.phases[-1]}"
        )
        return Rank(
            config=self.config,
            loop=loop,
            ranks=self.around.ranks,
            hooks=hooks,
            engine=engine,
            scheduler=scheduler,
            data_plane=plane,
            extensions=[extension.value for extension in extensions],
            plugins=self.plugins,
            quarantine=quarantine,
        )

    def _host_pages(self, plane: DataPlane) -> int:
        if plane.num_host_pages:
            return plane.num_host_pages
        text = f"the data plane {plane.kind!r} knows no bytes of a page; use host_pages"
        raise ConfigError([f"scheduler.host_cache: {text}"])

    def _parts(
        self,
        scheduler: SchedulerDriver,
        plane: DataPlane,
        *,
        hooks: RoundHooks,
        operations: Mapping[str, ControlOperation],
    ) -> LoopParts:
        around, engine = self.around, self.config.engine
        return LoopParts(
            scheduler=scheduler,
            data_plane=plane,
            frontend=around.frontend,
            ranks=around.ranks,
            hooks=hooks,
            settings=LoopSettings(
                self._limits(scheduler, plane), engine.depth, engine.stream_interval
            ),
            operations=operations,
            decode_text=around.decode_text,
            clock=around.clock,
            sleep=around.sleep,
            log=around.log,
        )

    def _stages(self, calls: Calls | None) -> list[AdmissionStage]:
        found = self.plugins.ask_for_lists("admission_stages")
        if calls is None:
            return [answer.value for answer in found]
        return [TimedStage(answer.value, answer.plugin, calls=calls) for answer in found]

    def _timekeepers(self, engine: RankEngine) -> list[Timekeeper]:
        instruments = engine.watched_by
        ours = [] if instruments is None else [InstrumentedTime(instruments).take]
        theirs = [answer.value for answer in self.plugins.ask("timekeeper")]
        given = (keeper for keeper in theirs if keeper is not None)
        return [*ours, *self.around.timekeepers, *given]

    def _limits(self, scheduler: SchedulerDriver, plane: DataPlane) -> IngressLimits:
        model, wanted = plane.model, self.config.engine.max_model_len
        return IngressLimits(
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
            max_model_len=min(model.max_model_len, wanted or model.max_model_len),
            max_request_tokens=scheduler.max_request_tokens,
            has_tokenizer=self.around.decode_text is not None,
            features=[name for each in self.plugins.members for name in each.plugin.features],
        )

    def _operations(self) -> dict[str, ControlOperation]:
        operations: dict[str, ControlOperation] = {}
        owners: dict[str, str] = {}
        problems = []
        for answer in self.plugins.ask_for_lists("control_operations"):
            name = answer.value.name
            if name in OWN_NAMES:
                text = f"plugin {answer.plugin!r}: control operation {name!r} is the core's own"
                problems.append(text)
            elif name in owners:
                both = f"{owners[name]!r} and {answer.plugin!r}"
                problems.append(f"control operation {name!r} is claimed by {both}")
            operations[name], owners[name] = answer.value, answer.plugin
        if problems:
            raise CompositionError(problems)
        return operations
