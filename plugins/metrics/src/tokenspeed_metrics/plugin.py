# SPDX-License-Identifier: MIT
"""The plugin: where every plugin's numbers go, and what the engine itself records.

It only watches. All its round hooks are observers, so a failure here ends nobody's request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen
from prometheus_client import CollectorRegistry

from tokenspeed_hookspecs import (
    CliCommand,
    ControlOperation,
    ControlReply,
    Engine,
    Instruments,
    Plugin,
    Round,
    hookimpl,
)
from tokenspeed_metrics.aliases import ALIASES, beside
from tokenspeed_metrics.catalogue import Buckets, Catalogue, label_problems
from tokenspeed_metrics.exporters import Exporter, make_exporters, unknown_exporters
from tokenspeed_metrics.exposition import Exposition
from tokenspeed_metrics.facts import record_facts
from tokenspeed_metrics.http import HttpExporter
from tokenspeed_metrics.requests import RequestSeries
from tokenspeed_metrics.rounds import RoundSeries

OPERATION = "metrics"


class Metrics(Plugin):
    """Records on the first member of each replica: the others would say the same."""

    name = "metrics"

    @frozen
    class Options:
        """What is recorded, and where it can be read besides the front end's `/metrics`."""

        enabled: bool = field(default=True, metadata={"help": "record and export"})
        host: str = field(default="127.0.0.1", metadata={"help": "where the port is bound"})
        port: int = field(
            default=0, metadata={"help": "a port for /metrics alone; 0 is none", "minimum": 0}
        )
        aliases: tuple[str, ...] = field(
            default=(), metadata={"help": "also use the names of these engines: vllm, sglang"}
        )
        labels: Mapping[str, str] = field(
            factory=dict, metadata={"help": "labels of your own on every series"}
        )
        histograms: Mapping[str, Sequence[float]] = field(
            factory=dict, metadata={"help": "other buckets, by a histogram's name"}
        )
        exporters: Mapping[str, Mapping[str, Any]] = field(
            factory=dict, metadata={"help": "more exporters, by name, each with its settings"}
        )

    def __init__(self, options: Options, engine: Engine) -> None:
        super().__init__(options, engine)
        self._aliases = [alias for name in options.aliases for alias in ALIASES.get(name, ())]
        buckets = Buckets(instead=options.histograms, beside=beside(self._aliases))
        self._catalogue = Catalogue(engine.log, buckets, common=options.labels)
        self._records = options.enabled and engine.ranks.replica.index == 0
        self._rounds: RoundSeries | None = None
        self._requests: RequestSeries | None = None
        self._exposition: Exposition | None = None
        self._exporters: list[Exporter] = []

    # --- composition -----------------------------------------------------------------------------

    @hookimpl
    def check_config(self, config: Mapping[str, Any]) -> Sequence[str]:
        unknown = [name for name in self.options.aliases if name not in ALIASES]
        known = ", ".join(ALIASES)
        return [
            *(f"metrics.aliases: expected some of {known}, got {name!r}" for name in unknown),
            *(f"metrics.labels: {problem}" for problem in label_problems(self.options.labels)),
            *unknown_exporters(self.options.exporters),
        ]

    @hookimpl
    def instruments(self) -> Instruments | None:
        return self._catalogue if self._records else None

    @hookimpl
    def control_operations(self) -> Sequence[ControlOperation]:
        return [ControlOperation(OPERATION, self._reply, "every series, as plain values")]

    @hookimpl
    def cli_commands(self) -> Sequence[CliCommand]:
        from tokenspeed_metrics.command import run

        return [CliCommand("metrics", "show a running server's numbers", run)]

    @hookimpl
    def start(self) -> None:
        if not self._records:
            return
        ranks = self.engine.ranks
        number = ranks.rank // ranks.replica.size  # of this replica among the data-parallel ones
        labels = {"model_name": self.engine.model.name, "engine": str(number)}
        self._exposition = Exposition(
            self._catalogue, {**labels, **self.options.labels}, self._aliases
        )
        record_facts(self._catalogue, self.engine)
        self._rounds = RoundSeries(self._catalogue, self.engine)
        self._requests = RequestSeries(self._catalogue, self.engine)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self._exposition)
        self._exporters = make_exporters(self.options.exporters, registry)
        if self.options.port:
            port = self.options.port + number
            http = HttpExporter(registry, host=self.options.host, port=port)
            self._exporters.append(http)
        for exporter in self._exporters:
            exporter.start()

    @hookimpl
    def stop(self) -> None:
        exporters, self._exporters = self._exporters, []
        for exporter in reversed(exporters):
            exporter.stop()

    # --- rounds ----------------------------------------------------------------------------------

    @hookimpl
    def request_finished(self, round: Round) -> None:
        if self._requests is not None and round.finished is not None:
            self._requests.finished(round.finished)

    @hookimpl
    def round_done(self, round: Round) -> None:
        rounds, requests = self._rounds, self._requests
        if rounds is not None and requests is not None and rounds.round_done(round):
            requests.count_refused()

    # --- asked by a front end --------------------------------------------------------------------

    def _reply(self, arguments: Mapping[str, object]) -> ControlReply:
        """Every series of this rank, in the form that `Samples.plain` describes."""
        if self._exposition is None or self._rounds is None or self._requests is None:
            return ControlReply(OPERATION, success=False, message="metrics are switched off")
        self._rounds.take_state()
        self._rounds.take_sizes()
        self._requests.count_refused()
        families = [samples.plain() for samples in self._exposition.samples()]
        return ControlReply(OPERATION, success=True, values={"families": families})
