# SPDX-License-Identifier: MIT
"""One rank, composed: its loop, its plugins and the life of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import define

from tokenspeed_core.composition import fingerprint as digests
from tokenspeed_core.composition.plugin_class import LoadedPlugin
from tokenspeed_core.composition.plugin_set import PluginSet
from tokenspeed_core.composition.quarantine import Quarantine
from tokenspeed_core.composition.rank_engine import RankEngine
from tokenspeed_core.composition.resolve import FailedPlugin
from tokenspeed_core.composition.round_hooks import RoundHooks
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.loop.event_loop import EventLoop
from tokenspeed_core.ranks.membership import Membership
from tokenspeed_hookspecs import DataPlane, DataPlaneExtension, SchedulerDriver


@define(eq=False, kw_only=True)
class Rank:
    """A composed rank: `start`, then rounds of `loop`, then `stop`; `config` is what it runs on."""

    config: EngineConfig
    loop: EventLoop
    ranks: Membership
    hooks: RoundHooks
    engine: RankEngine
    scheduler: SchedulerDriver
    data_plane: DataPlane
    extensions: Sequence[DataPlaneExtension]
    _plugins: PluginSet
    _quarantine: Quarantine

    @property
    def plugins(self) -> Sequence[LoadedPlugin]:
        """The loaded plugins in their order, with this rank's instances."""
        return tuple(self._plugins.members)

    @property
    def failed(self) -> Sequence[FailedPlugin]:
        """The optional plugins that are not loaded, and why."""
        return tuple(self._plugins.failed)

    @property
    def observer_errors(self) -> Mapping[str, int]:
        """How often each observer failed."""
        return self._quarantine.errors

    @property
    def dropped_observers(self) -> frozenset[str]:
        """The observers that were switched off."""
        return self._quarantine.dropped

    def announced(self) -> Mapping[str, Mapping[str, object]]:
        """What each plugin has to say to a front end, once it is started, by its name."""
        return {answer.plugin: answer.value for answer in self._plugins.ask("announce")}

    def fingerprint(self) -> str:
        """Return the digest that must be the same on every rank."""
        return digests.fingerprint(self._facts())

    def _facts(self) -> digests.Facts:
        return digests.facts_of(self.config, self.plugins, data_plane=self.data_plane)

    def start(self) -> None:
        """Start the data plane and the plugins in order; what had started is stopped on failure."""
        try:
            digests.agree(self._facts(), self.engine.ranks)
            self.data_plane.start(self.extensions)
            self.ranks.on_end(self.data_plane.interrupt)
            self._plugins.start()
        except BaseException as error:
            self.ranks.fail(f"{type(error).__name__}: {error}")
            for later in self._stop_all():
                error.add_note(f"then, while stopping: {type(later).__name__}: {later}")
            raise

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Run rounds until the ranks agree to stop; the others are told why this one fails."""
        try:
            self.loop.run(should_stop)
        except BaseException as error:
            self.ranks.fail(f"{type(error).__name__}: {error}")
            raise

    def stop(self) -> None:
        """Stop the plugins in reverse order, then the data plane; all of them, then raise."""
        errors = self._stop_all()
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("several parts failed to stop", errors)

    def _stop_all(self) -> list[Exception]:
        errors = self._plugins.stop()
        try:
            self.data_plane.stop()
        except Exception as error:
            self.engine.log.exception("the data plane failed to stop")
            errors.append(error)
        self.ranks.close()
        return errors
