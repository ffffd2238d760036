# SPDX-License-Identifier: MIT
"""The class every plugin extends: each hook's signature and contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import frozen

from tokenspeed_hookspecs.admission import AdmissionStage, Refuse
from tokenspeed_hookspecs.control import ControlOperation
from tokenspeed_hookspecs.data_plane import DataPlane, DataPlaneExtension
from tokenspeed_hookspecs.engine import CliCommand, Engine, RequestFlag
from tokenspeed_hookspecs.instruments import Instruments, Timekeeper
from tokenspeed_hookspecs.markers import first_answer, observer, participant
from tokenspeed_hookspecs.rounds import Round
from tokenspeed_hookspecs.scheduler import SchedulerSettings
from tokenspeed_hookspecs.storage import StorageTick


class Plugin:
    """A subsystem: subclass it, name it, and implement the hooks it needs with `@hookimpl`.

    Composition makes one instance a rank. Hooks run on the loop thread, on every rank of the
    replica, in the order of `after` (ties alphabetical), and must not block. What a participant
    decides must be the same on every replica rank: no clocks, no unordered sets, no local luck.

    `shorthand` names the option that the flag `--<name> VALUE` sets; the flag chooses the plugin.
    """

    name: ClassVar[str]
    version: ClassVar[str] = ""
    after: ClassVar[tuple[str, ...]] = ()
    api: ClassVar[str] = ">=1,<2"
    features: ClassVar[tuple[str, ...]] = ()
    request_flags: ClassVar[tuple[RequestFlag, ...]] = ()
    shorthand: ClassVar[str] = ""

    @frozen
    class Options:
        """The plugin's settings, an attrs class: they become flags and a TOML table."""

    def __init__(self, options: Any, engine: Engine) -> None:
        self.options = options
        self.engine = engine

    # --- composition -----------------------------------------------------------------------

    @participant
    def check_config(self, config: Mapping[str, Any]) -> Sequence[str]:
        """Return every problem of the whole configuration as a sentence; none is an empty list.

        When: before anything starts. `config` is the engine's, as plain nested mappings.

        Example: `return [] if config["engine"]["depth"] == 0 else ["mine needs engine.depth 0"]`
        """
        raise NotImplementedError

    @first_answer
    def instruments(self) -> Instruments | None:
        """Return what `engine.instruments` is to be for every plugin of this rank, or None.

        When: after `check_config`, before every other hook. With an answer the core records, too:
        the time of each phase and of each plugin's hooks, and the failures of observers.

        Example: `return self.catalogue if self.options.enabled else None`
        """
        raise NotImplementedError

    @participant
    def timekeeper(self) -> Timekeeper | None:
        """Return who is told of the time of each phase and of each plugin's hooks, or None.

        When: before the loop is made. A rank without a timekeeper measures nothing.

        Example: `return self.trace`
        """
        raise NotImplementedError

    @participant
    def configure_scheduler(self, settings: SchedulerSettings) -> None:
        """Change the scheduler's settings in place, before it is built.

        Example: `settings.native_options["enable_kv_cache_events"] = True`
        """
        raise NotImplementedError

    @participant
    def configure_model(self, options: dict[str, Any]) -> None:
        """Change the options the data plane builds its model from, in place.

        Example: `options["tables"] = "host"`
        """
        raise NotImplementedError

    @participant
    def extend_data_plane(self, plane: DataPlane) -> Sequence[DataPlaneExtension]:
        """Return this plugin's part of the device side, for the plane's `kind`.

        When: once, before the plane starts. An unknown kind should raise and say which are known.

        Example: `return [MyTorchPart()] if plane.kind == "torch" else []`
        """
        raise NotImplementedError

    @participant
    def admission_stages(self) -> Sequence[AdmissionStage]:
        """Return the stages a request passes before the scheduler knows it, in order.

        Example: `return [self.rate_limit]`
        """
        raise NotImplementedError

    @participant
    def control_operations(self) -> Sequence[ControlOperation]:
        """Return the control requests this plugin answers; a name taken twice is refused.

        Example: `return [ControlOperation("rebalance", self.on_rebalance)]`
        """
        raise NotImplementedError

    @participant
    def announce(self) -> Mapping[str, object]:
        """Return what a front end or gateway should know of this plugin.

        When: once, after `start`. It travels in `EngineInfo.details` under the plugin's name, so it
        holds plain values: texts, numbers, lists, maps.

        Example: `return {"endpoint": self.options.endpoint}`
        """
        raise NotImplementedError

    @participant
    def cli_commands(self) -> Sequence[CliCommand]:
        """Return subcommands of `tokenspeed`; called on the class, without an engine running.

        Example: `return [CliCommand("tables", "list the tables", run_tables)]`
        """
        raise NotImplementedError

    @participant
    def start(self) -> None:
        """Open what the plugin needs (threads, sockets), before the first round.

        Example: `self.publisher = Publisher(self.options.port)`
        """
        raise NotImplementedError

    @participant
    def stop(self) -> None:
        """Close everything `start` opened; called in reverse order, also after a failed round.

        Example: `self.publisher.close()`
        """
        raise NotImplementedError

    # --- head of the round and admission -------------------------------------------------------

    @participant
    def round_report(self, round: Round) -> bytes:
        """Return bytes that ride the relay to every replica member.

        When: each round, before messages are admitted; members read all of them in member order
        from `round.reports[name]`. Implemented on every member or on none.

        Example: `return self.finished_ids()`
        """
        raise NotImplementedError

    @first_answer
    def validate_request(self, round: Round) -> Refuse | None:
        """Refuse `round.candidate`, a request that passed the core's checks, or return None.

        The first refusal wins; it ends the request with an abort and touches nobody else.

        Example: `return Refuse("tenant is unknown", 400) if unknown(round.candidate) else None`
        """
        raise NotImplementedError

    @participant
    def request_aborted(self, round: Round) -> None:
        """Learn that the clients of `round.aborted` are gone, before the core acts on it.

        Ids may be unknown, or finished already. Tell whoever works for them to stop.

        Example: `for request_id in round.aborted: self.transfers.cancel(request_id)`
        """
        raise NotImplementedError

    @participant
    def refuse_weights(self, round: Round) -> str | None:
        """Return why `round.operation`, an update of the weights, may not be done, or None.

        When: before anything of it is done. Its arguments are those of the wire, with `flush_cache`
        as it will be acted on. The text is the reply.

        Example: `return None if round.operation.arguments.get("weight_version") else "name it"`
        """
        raise NotImplementedError

    @participant
    def cache_clearing(self, round: Round) -> bool:
        """Forget what this plugin keeps of cached prefixes; False if it could not.

        When: in the gate, on every rank, once all ranks agreed that they can clear their caches and
        before any does. Where a rank's plugin could not, nothing is cleared and the flush, or what
        needed it, is refused.

        Example: `return self.store.remove(self.namespace)`
        """
        raise NotImplementedError

    @participant
    def weights_loaded(self, round: Round) -> None:
        """Learn that `round.operation` replaced the weights on every rank, ahead of its reply.

        Example: `self.version = round.operation.arguments["weight_version"]`
        """
        raise NotImplementedError

    # --- storage, plan, dispatch, commit -------------------------------------------------------

    @first_answer
    def storage_tick(self, round: Round) -> StorageTick | None:
        """Return the scheduler's clock and storage permissions of this round.

        When: before the plan, every round, frozen or not (`round.frozen` forbids forwards). Without
        an answer the core sends a tick only when the forward permission changes.

        Example: `return StorageTick(now_us=self.agreed_clock, allow_forward=not round.frozen)`
        """
        raise NotImplementedError

    @participant
    def planned(self, round: Round) -> None:
        """See `round.plan` before anything of it is dispatched; also in frozen rounds.

        Example: `self.executor.submit(round.plan.native.cache)`
        """
        raise NotImplementedError

    @participant
    def dispatch(self, round: Round) -> None:
        """Attach inputs for this plugin's extension, or set `round.commit_first`.

        When: each round with a batch, before any commit of the round.

        Example: `round.dispatch.inputs["mine"] = windows_of(round.batch)`
        """
        raise NotImplementedError

    @participant
    def committed(self, round: Round) -> None:
        """See `round.forward` after its tokens were taken into the request states.

        Example: `self.usage.update(round.forward.batch.request_ids)`
        """
        raise NotImplementedError

    @participant
    def poll_events(self, round: Round) -> Sequence[object]:
        """Return native scheduler events that join this round's one feedback, behind the commits.

        When: each round that is not frozen.

        Example: `return self.transfers.poll()`
        """
        raise NotImplementedError

    # --- drain -----------------------------------------------------------------------------------

    @participant
    def scheduler_events(self, round: Round) -> None:
        """Take `round.scheduler_events`, the cache events drained after the last mutation.

        When: each round, frozen or not, events or not.

        Example: `self.publisher.publish(round.scheduler_events)`
        """
        raise NotImplementedError

    @participant
    def drain_blocked(self, round: Round) -> bool:
        """Whether something of this plugin still has to end before a drain may answer.

        Example: `return bool(self.settling)`
        """
        raise NotImplementedError

    @participant
    def refuse_release(self, round: Round) -> str | None:
        """Return why memory may not be released now, or None.

        Example: `return "a rebalance runs" if self.busy else None`
        """
        raise NotImplementedError

    @participant
    def busy(self, round: Round) -> bool:
        """Whether this plugin keeps the loop from waiting for messages.

        Example: `return self.store.pending > 0`
        """
        raise NotImplementedError

    # --- observers -------------------------------------------------------------------------------

    @observer
    def request_finished(self, round: Round) -> None:
        """See `round.finished`, once for each request that was registered and left.

        Example: `self.latency.observe(round.finished.finished_at - round.finished.received_at)`
        """
        raise NotImplementedError

    @observer
    def iteration(self, round: Round) -> None:
        """See a batch right before it is dispatched: `round.batch`, `round.in_flight`.

        Example: `self.tokens.observe(round.batch.num_tokens)`
        """
        raise NotImplementedError

    @observer
    def forward_done(self, round: Round) -> None:
        """See `round.forward` after its tokens were taken, as `committed` does, and only watch.

        Example: `self.speed.add(round.forward.result.lengths)`
        """
        raise NotImplementedError

    @observer
    def round_done(self, round: Round) -> None:
        """See the round after its outputs and replies left.

        `round.forwards` are those that were committed in it, for whoever need not hear of each at
        once: a hook less a round.

        Example: `self.rounds += 1`
        """
        raise NotImplementedError
