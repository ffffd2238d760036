# SPDX-License-Identifier: MIT
"""One of two mirrored ranks, in a process of its own: `python -m ... RANK FOLDER FD...`.

The process is thrown away, so it may be turned against the plugin: its clocks run otherwise than
the other rank's, its hash seed and the order of plugins are others, and what blocks is noticed.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import logging
import os
import random
import socket
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import msgspec
from attrs import frozen

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.composition.round_hooks import OBSERVED
from tokenspeed_core.composition.selection import PluginChoice
from tokenspeed_core.composition.signatures import implemented
from tokenspeed_core.ranks.mesh import RankError, ranks_of
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.conformance.blocking import Suspicion
from tokenspeed_core.testing.conformance.mirror_plan import (
    CALM_ROUND,
    Companion,
    HookCall,
    MirrorJob,
    MirrorResult,
    Traffic,
)
from tokenspeed_core.testing.conformance.pipe_mesh import PipeMesh
from tokenspeed_core.testing.conformance.running import setup_of
from tokenspeed_core.testing.conformance.subject import Address, Subject
from tokenspeed_core.testing.conformance.watching import Watcher
from tokenspeed_core.testing.scripted_frontend import ManualFrontend
from tokenspeed_core.testing.scripted_plane import ScriptedDataPlane
from tokenspeed_hookspecs import Plugin, Round, hookimpl

ROUND_S = 2.0  # what a round may take besides the plugin's own waiting
START_S = 30.0  # and what composing and stopping may: imports, on a machine that is busy
MOST_ROUNDS = 10_000
STEPS_S, STARTS_S = (0.05, 0.07), (1000.0, 5000.25)  # by rank: its clock's step a round, and start
NAP_S = 0.001
_nap = time.sleep


def main(arguments: Sequence[str]) -> None:
    """Run every job, each over its own socket, and write what came of it; then end at once."""
    rank, folder, fds = int(arguments[0]), Path(arguments[1]), [int(each) for each in arguments[2:]]
    logging.disable(logging.CRITICAL)
    jobs = msgspec.json.decode((folder / "jobs").read_bytes(), type=list[MirrorJob])
    suspicion = Suspicion(STARTS_S[rank])
    suspicion.watch_process()
    for index, (job, fd) in enumerate(zip(jobs, fds, strict=True)):
        place = folder / f"{index}.{rank}"
        if place.exists():
            continue  # done by an earlier pair of ranks
        with place.with_suffix(f"{place.suffix}.hang").open("w") as trace:
            watchdog = Watchdog(trace)
            mesh = PipeMesh(rank, socket.socket(fileno=fd), START_S)
            result = _Mirror(job, mesh, suspicion=suspicion, watchdog=watchdog).run()
            faulthandler.cancel_dump_traceback_later()
        place.write_bytes(msgspec.json.encode(result))
    os._exit(0)  # whatever threads a plugin left


@frozen
class Watchdog:
    """Ends the process, and leaves a traceback, when what is allowed some time takes more."""

    trace: IO[str]

    def allow(self, seconds: float) -> None:
        """Begin to count anew."""
        faulthandler.dump_traceback_later(seconds, exit=True, file=self.trace)


class _Mirror:
    """One job on this rank."""

    def __init__(
        self, job: MirrorJob, mesh: PipeMesh, *, suspicion: Suspicion, watchdog: Watchdog
    ) -> None:
        self.job = job
        self.mesh = mesh
        self.suspicion = suspicion
        self.watchdog = watchdog
        self.watcher = Watcher()
        self.rounds: list[dict[str, str]] = []
        self.problems: list[str] = []

    def run(self) -> MirrorResult:
        """Run the traffic to its end; an exception is told, not raised."""
        error, is_parted = "", False
        with self._quiet_place(), self.suspicion.of(self.watcher):
            drawn = random.getstate()
            try:
                self._run()
            except RankError as parted:
                error, is_parted = str(parted), True
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
            if random.getstate() != drawn:
                self.problems.append("it draws from the process's random numbers (module random)")
        self.mesh.close()
        found = [*self.problems, *self.watcher.faults, *self.suspicion.found]
        calls = [HookCall(c.hook, c.round, c.waited_s, c.cpu_s) for c in self.watcher.calls]
        return MirrorResult(self.rounds, calls, found, error, is_parted)

    def _run(self) -> None:
        self.watchdog.allow(START_S)
        subject = Subject(
            plugin=_imported(self.job.address),
            options=self.job.options,
            features=self.job.features,
        )
        plugin = subject.plugin
        if self.job.is_silenced and self.mesh.rank == 1:
            plugin = _silenced(plugin)
        setup = setup_of(subject, self.watcher, plugin=plugin)
        chosen: list[PluginChoice | type[Plugin]] = [setup.plugins[0], Companion]  # type: ignore[list-item]  # always a choice
        frontend = ManualFrontend() if self.mesh.rank == 0 else None
        around = Surroundings(
            frontend=frontend,
            ranks=ranks_of(Topology(tp=2), self.mesh, is_checked=True),
            tokenizer=setup.tokenizer,
            decode_text=setup.decode_text,
            make_data_plane=ScriptedDataPlane,
            clock=self.suspicion.clock,
            sleep=lambda seconds: None,
        )
        order = chosen if self.mesh.rank == 0 else chosen[::-1]
        rank = build_rank(setup.config(), order, surroundings=around)
        rank.start()
        try:
            self._rounds(rank, frontend, traffic=Traffic.of(subject.kinds))
        finally:
            self.watchdog.allow(START_S)
            rank.stop()

    def _rounds(self, rank: Rank, frontend: ManualFrontend | None, *, traffic: Traffic) -> None:
        plane = cast(ScriptedDataPlane, rank.data_plane)
        patience_s, napped_s, released = self.job.patience_s, 0.0, 0
        for number in range(1, MOST_ROUNDS):
            # The other rank, which waits for this one, tells of it first.
            self.watchdog.allow(ROUND_S + 2 * patience_s)
            self.suspicion.now_s += STEPS_S[self.mesh.rank]
            if frontend is not None:
                frontend.put(*traffic.due(number))
            is_calm = number > CALM_ROUND and not len(rank.loop.requests)
            is_over = rank.loop.round(is_calm or napped_s > patience_s)
            self.mesh.limit_s = ROUND_S + patience_s
            ended = [name for name, _ in plane.released[released:]]
            released = len(plane.released)
            self.rounds.append(_facts(rank, ended))
            if is_over:
                break
            if rank.loop.last_round.batch is None and number > CALM_ROUND:
                _nap(NAP_S)
                napped_s += NAP_S
        if left := rank.loop.requests.ids():
            held = self.watcher.held.get(left[0])
            place = f", held by stage {held!r}" if held else ""
            self.problems.append(f"request {left[0]!r} never ended{place}")

    @contextmanager
    def _quiet_place(self) -> Iterator[None]:
        """An empty working folder, and a standard output that is read afterwards."""
        kept, said, elsewhere = os.dup(1), os.memfd_create("said"), tempfile.gettempdir()
        with tempfile.TemporaryDirectory() as folder:
            os.dup2(said, 1)
            os.environ["TMPDIR"] = tempfile.tempdir = folder
            os.chdir(folder)
            try:
                yield
            finally:
                sys.stdout.flush()
                os.dup2(kept, 1)
                left = sorted(os.listdir(folder))
                os.chdir("/")
                os.environ["TMPDIR"] = tempfile.tempdir = elsewhere
        text = os.pread(said, 100, 0).decode(errors="replace").strip()
        os.close(said)
        os.close(kept)
        if text:
            self.problems.append(f"it writes to standard output: {text!r}")
        if left:
            self.problems.append(f"it leaves files in the working or temporary folder: {left[:3]}")


def _facts(rank: Rank, ended: Sequence[str]) -> dict[str, str]:
    """What must be the same on both ranks after a round."""
    loop = rank.loop
    last, batch, plan = loop.last_round, loop.last_round.batch, loop.last_round.plan
    known = {name: loop.requests.get(name) for name in loop.requests.ids()}
    facts = {
        "requests": ", ".join(known),
        "ended": ", ".join(ended),
        "tokens": str({name: len(r.output_ids) for name, r in known.items() if r is not None}),
        "pause state": str(loop.controls.describe()),
        "cache events": str(len(last.scheduler_events)),
        "commit_first": str(last.commit_first),
    }
    if batch is not None:
        rows = zip(batch.request_ids, batch.input_lengths, batch.slots.tolist(), strict=True)
        facts["batch"] = ", ".join(f"{name}:{length} in {slot}" for name, length, slot in rows)
        tables = b"".join(table.tobytes() for table in batch.block_tables.values())
        facts["block tables"] = str(zlib.crc32(tables))
        assert last.dispatch is not None, "a round with a batch was dispatched"
        facts["inputs"] = ", ".join(last.dispatch.inputs)
    if plan is not None:
        facts["cache operations"] = str([(op.kind.value, op.op_id) for op in plan.operations])
    return facts


def _silenced(plugin: type[Plugin]) -> type[Plugin]:
    """The class with observer hooks that do nothing."""
    methods = [method for hook, method in implemented(plugin).items() if hook in OBSERVED]
    members = {name: hookimpl(_nothing, specname=name) for name in methods}
    return cast("type[Plugin]", type(plugin.__name__, (plugin,), {**members}))


def _nothing(self: Plugin, round: Round) -> None:
    """Stand in for an observer hook."""


def _imported(address: Address) -> type[Plugin]:
    try:
        found: object = importlib.import_module(address.module)
    except ImportError:
        spec = importlib.util.spec_from_file_location(address.module, address.file)
        assert spec is not None, address
        assert spec.loader is not None, address
        found = sys.modules[address.module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
    for name in address.name.split("."):
        found = getattr(found, name)
    return cast("type[Plugin]", found)


if __name__ == "__main__":
    main(sys.argv[1:])
