# SPDX-License-Identifier: MIT
"""The plugin: carries out what the scheduler plans for a store behind the host tier.

The scheduler decides what to look for, fetch and put; the executor does it on its own threads, and
each round's reports say what came of it, on every rank alike. Nothing a store does can fail a
request or hold up a round: what it does not bring is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tokenspeed_hookspecs import (
    CliCommand,
    Engine,
    HostPages,
    Plugin,
    Round,
    SchedulerSettings,
    StorageOperation,
    StorageResult,
    StorageTick,
    hookimpl,
)
from tokenspeed_l3.addresses import open_store, parse_address
from tokenspeed_l3.agreement import Agreement
from tokenspeed_l3.errors import L3Error
from tokenspeed_l3.executor import Executor, monotonic_us
from tokenspeed_l3.fetched import FetchedPages
from tokenspeed_l3.jobs import GET, PUT, QUERY, Job, Site
from tokenspeed_l3.late_store import LateStore
from tokenspeed_l3.options import L3Options
from tokenspeed_l3.report import Report, encode
from tokenspeed_l3.seat import Seat, agree_on_seat
from tokenspeed_l3.store import Store, StoreError
from tokenspeed_l3.telling import STORAGE, Telling
from tokenspeed_l3.versions import Versions

TELL_S = 1.0


class L3(Plugin):
    """Puts prefix pages into a store and fetches them again."""

    name = "l3"
    shorthand = "store"
    Options = L3Options

    def __init__(self, options: L3Options, engine: Engine) -> None:
        super().__init__(options, engine)
        self._agreement = Agreement(engine.ranks.replica.size)
        self._versions = Versions(options.weight_version)
        self._page_size = 0
        self._seat: Seat | None = None
        self._site: Site | None = None
        self._fetched = FetchedPages(())
        self._executor: Executor | None = None
        self._telling: Telling | None = None
        self._gets: dict[int, StorageOperation] = {}
        self._namespaces: dict[tuple[str, bool], str] = {}
        self._loaded_in = 0
        self._is_quarantined = self._was_pending = False
        self._told_at = 0.0

    @property
    def executor(self) -> Executor | None:
        """This rank's executor, from `start` to `stop`; none in a replay."""
        return self._executor

    @property
    def namespace(self) -> str:
        """Where objects are put now."""
        if self._seat is None:
            raise L3Error("the namespace is known from the hook start on, when ranks agreed on it")
        version, is_update = self._versions.current, self._versions.is_update
        if (version, is_update) not in self._namespaces:
            name = self._seat.facts.namespace(version, is_update=is_update)
            self._namespaces[version, is_update] = name
        return self._namespaces[version, is_update]

    def open_store(self, buffers: Sequence[memoryview]) -> Store:
        """Open the store that the options name. ValueError or StoreError: it cannot be."""
        options: L3Options = self.options
        address = parse_address(options.store, options.store_options)
        return open_store(address, buffers=buffers)

    # --- composition -----------------------------------------------------------------------------

    @hookimpl
    def check_config(self, config: Mapping[str, Any]) -> Sequence[str]:
        problems: list[str] = self.options.problems()
        scheduler = config["scheduler"]
        if not scheduler.get("host_pages") and not scheduler.get("host_cache"):
            problems.append(
                "it fetches into the host tier and puts from there, and there is none; give it "
                "memory, such as --host-cache 2GiB"
            )
        if not scheduler.get("prefix_cache", True):
            problems.append("it keeps prefixes, which scheduler.prefix_cache = false leaves out")
        return problems

    @hookimpl
    def cli_commands(self) -> Sequence[CliCommand]:
        from tokenspeed_l3.command import run

        return [CliCommand("l3", "look into a store: ls, stats, verify, prune", run)]

    @hookimpl
    def configure_scheduler(self, settings: SchedulerSettings) -> None:
        if settings.storage is not None:
            raise L3Error("another plugin carries out the scheduler's storage operations already")
        settings.storage = self.options.storage()
        self._page_size = settings.page_size

    @hookimpl
    def start(self) -> None:
        engine, options = self.engine, self.options
        host = engine.data_plane.host_pages
        if host is None and not engine.is_replay:
            raise L3Error(f"data plane {engine.data_plane.kind!r} gives no access to host pages")
        self._seat = agree_on_seat(
            engine.ranks,
            host,
            deployment=options.deployment_id or engine.model.name.rstrip("/").rpartition("/")[2],
            page_size=self._page_size,
        )
        self._fetched = FetchedPages(engine.data_plane.cache_groups)
        if host is None:
            return
        self._site = Site(self._seat.parts, host)
        self._executor = self._make_executor(host)
        self._executor.start()
        counts = engine.scheduler.storage_counts
        self._telling = Telling(engine.instruments, self._executor, of_scheduler=counts)

    @hookimpl
    def announce(self) -> Mapping[str, object]:
        # Without the rest of the address, which may hold a password.
        told = {"store": self.options.store.partition(":")[0], "namespace": self.namespace}
        return {**told, "weight_version": self._versions.current}

    @hookimpl
    def stop(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.stop(limit_s=self.options.stop_timeout_s)

    # --- rounds ----------------------------------------------------------------------------------

    @hookimpl
    def round_report(self, round: Round) -> bytes:
        return encode(Report() if self._executor is None else self._executor.report())

    @hookimpl
    def storage_tick(self, round: Round) -> StorageTick | None:
        if round.cache_cleared:
            self._note_cleared(round)
        agreed = self._agreement.agree(round.reports[self.name], now_us=int(round.now * 1_000_000))
        for result in agreed.results:
            self._note_result(result)
        return StorageTick(
            now_us=agreed.now_us,
            allow_forward=not round.frozen,
            allow_storage=not round.frozen and agreed.is_available and not self._versions.is_stale,
            queued_operations=agreed.queued_operations,
            queued_bytes=agreed.queued_bytes,
            oldest_operation_us=agreed.oldest_operation_us,
            results=agreed.results,
        )

    @hookimpl
    def planned(self, round: Round) -> None:
        plan = round.plan
        if plan is None:
            return
        if plan.storage:
            self._agreement.begin(plan.storage)
            for operation in plan.storage:
                self._carry_out(operation)
        for request_id, count in self._fetched.tokens(plan):
            self.engine.requests.note_cached(request_id, STORAGE, num_tokens=count)

    @hookimpl
    def request_finished(self, round: Round) -> None:
        if self._telling is not None and round.finished is not None:
            self._telling.finished(round.finished)

    # --- flushes and weights ---------------------------------------------------------------------

    @hookimpl
    def refuse_weights(self, round: Round) -> str | None:
        asked = {} if round.operation is None else round.operation.arguments
        if asked.get("flush_cache") and not asked.get("weight_version"):
            return (
                "weight_version: is required with flush_cache while a store is shared; without a "
                "new name other engines would take pages of these weights for theirs"
            )
        return None

    @hookimpl
    def cache_clearing(self, round: Round) -> bool:
        if self._executor is None:
            return True
        return self._executor.remove_namespace(
            f"{self.namespace}/", limit_s=self.options.flush_timeout_s
        )

    @hookimpl
    def weights_loaded(self, round: Round) -> None:
        asked = {} if round.operation is None else round.operation.arguments
        version = asked.get("weight_version")
        self._loaded_in = round.number
        self._versions.load(
            version if isinstance(version, str) and version else None,
            is_clean=round.cache_cleared and not self._holds_pages(),
        )
        if self._versions.is_stale:
            self.engine.log.warning(
                "l3: pages of the earlier weights are still cached%s; nothing is stored or fetched "
                "until a flush while no request runs",
                "" if version else ", and the new weights have no version",
            )

    @hookimpl
    def round_done(self, round: Round) -> None:
        if self._telling is None:
            return
        is_pending = self._agreement.num_open > 0
        if is_pending is self._was_pending and round.now - self._told_at < TELL_S:
            return
        self._was_pending, self._told_at = is_pending, round.now
        self._telling.tell(self.engine.scheduler.storage_counts)

    # ---------------------------------------------------------------------------------------------

    def _make_executor(self, host: HostPages) -> Executor:
        make = partial(self.open_store, host.buffers)
        log, options = self.engine.log, self.options
        try:
            store, is_open = make(), True
        except StoreError as error:
            # Without the rest of the address, which may hold a password.
            told = f"the store {parse_address(options.store)} cannot be opened: {error}"
            if options.required:
                raise L3Error(f"{told}; l3.required = false would start without it") from error
            log.error("l3: %s; it is tried again in %s s", told, options.recovery_interval_s)
            store, is_open = LateStore(make), False
        executor = Executor(store, options.executor(), memory=list(host.buffers), log=log)
        if not is_open:
            executor.leave_alone()
        return executor

    def _carry_out(self, operation: StorageOperation) -> None:
        if operation.kind is GET:
            self._gets[operation.op_id] = operation
        if self._executor is None or self._site is None:
            return
        if operation.kind in {QUERY, GET, PUT}:
            self._executor.submit(Job(operation, self.namespace, self._site, monotonic_us()))
        else:
            self._executor.cancel(operation.op_id)

    def _note_result(self, result: StorageResult) -> None:
        operation = self._gets.pop(result.op_id, None)
        if operation is not None:
            self._fetched.landed(operation, result)
        if not result.is_retired and not self._is_quarantined:
            self._is_quarantined = True
            self.engine.log.error(
                "l3: the store %s may still touch host pages after a call that failed; they are "
                "never used again, and nothing is put until a restart",
                self.options.store.partition(":")[0],
            )

    def _note_cleared(self, round: Round) -> None:
        self._fetched.forget()
        # Weights that were loaded behind the clearing were asked about it then.
        if self._loaded_in != round.number and not self._holds_pages():
            self._versions.clear()

    def _holds_pages(self) -> bool:
        """Whether a request has pages, which a clearing leaves to it and its end publishes."""
        sizes = self.engine.scheduler.sizes
        return sizes.prefilling + sizes.decoding + sizes.retracted > 0
