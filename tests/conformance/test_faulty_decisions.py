# SPDX-License-Identifier: MIT
"""Plugins that decide by something that another rank does not have, or keep the loop waiting."""

from __future__ import annotations

import queue
import random
import subprocess
import time
from pathlib import Path

import pytest

from tokenspeed_core.testing.conformance.mirroring import mirror_all
from tokenspeed_core.testing.conformance.subject import Subject
from tokenspeed_hookspecs import Engine, Plugin, Round, hookimpl


class Cutting(Plugin):
    """Ends a request where `chooses` says so: what each of these plugins decides."""

    name = "cutting"

    @hookimpl
    def planned(self, round: Round) -> None:
        if round.number % 3 == 0 and self.chooses(round):
            ids = self.order(list(self.engine.requests.ids()))
            if ids:
                self.engine.requests.abort(ids[0], "there are too many")

    def chooses(self, round: Round) -> bool:
        """Whether to cut now."""
        return True

    def order(self, ids: list[str]) -> list[str]:
        """Which request is the first to go."""
        return ids


class DecidesByClock(Cutting):
    """The time is another one on each rank."""

    name = "decides_by_clock"

    def chooses(self, round: Round) -> bool:
        return int(time.monotonic() * 10) % 2 == 0


class DecidesByEngineClock(Cutting):
    """The engine's clock is no agreement either."""

    name = "decides_by_engine_clock"

    def chooses(self, round: Round) -> bool:
        return int(self.engine.clock() * 10) % 2 == 0


class IteratesASet(Cutting):
    """The order of a set of texts differs by process."""

    name = "iterates_a_set"

    def order(self, ids: list[str]) -> list[str]:
        return list(set(ids))


class SortsByHash(Cutting):
    """So does the hash of a text."""

    name = "sorts_by_hash"

    def order(self, ids: list[str]) -> list[str]:
        return sorted(ids, key=hash)


class ThrowsDice(Cutting):
    """Chance is not agreed on."""

    name = "throws_dice"

    def chooses(self, round: Round) -> bool:
        return random.random() < 0.5


class ActsOnOneRank(Cutting):
    """A decision is every rank's, or nobody's."""

    name = "acts_on_one_rank"

    def chooses(self, round: Round) -> bool:
        return self.engine.ranks.replica.index == 0


class AsksOneRankOnly(Plugin):
    """An exchange that only some ranks enter leaves the others waiting."""

    name = "asks_one_rank_only"

    @hookimpl
    def planned(self, round: Round) -> None:
        if round.number == 5 and self.engine.ranks.replica.index == 0:
            self.engine.ranks.replica.agree_min([1])


class ObserverActs(Plugin):
    """An observer may be switched off on one rank, so it only watches."""

    name = "observer_acts"

    @hookimpl
    def round_done(self, round: Round) -> None:
        ids = self.engine.requests.ids()
        if round.number % 5 == 0 and ids:
            self.engine.requests.abort(ids[0], "it is five rounds later")


class Sleeps(Plugin):
    """The loop waits for no one."""

    name = "sleeps"

    @hookimpl
    def committed(self, round: Round) -> None:
        time.sleep(0.001)


class WaitsForAQueue(Plugin):
    """A wait without a sleep."""

    name = "waits_for_a_queue"

    def __init__(self, options: object, engine: Engine) -> None:
        super().__init__(options, engine)
        self.answers: queue.Queue[int] = queue.Queue()

    @hookimpl
    def iteration(self, round: Round) -> None:
        if round.number % 8 == 0:
            try:
                self.answers.get(timeout=0.05)
            except queue.Empty:
                return


class WaitsForEver(Plugin):
    """A lock that nobody gives back."""

    name = "waits_for_ever"

    def __init__(self, options: object, engine: Engine) -> None:
        super().__init__(options, engine)
        self.answers: queue.Queue[int] = queue.Queue()

    @hookimpl
    def planned(self, round: Round) -> None:
        if round.number == 6:
            self.answers.get()


class WritesAFile(Plugin):
    """A file in a hook: it waits, and stays behind."""

    name = "writes_a_file"

    @hookimpl
    def committed(self, round: Round) -> None:
        with Path("rounds.txt").open("a") as file:
            file.write(f"{round.number}\n")


class StartsAProcess(Plugin):
    """A command in a hook."""

    name = "starts_a_process"

    @hookimpl
    def planned(self, round: Round) -> None:
        if round.number == 7:
            subprocess.run(["true"], check=True)


class Computes(Plugin):
    """A hook that computes for long keeps every request waiting."""

    name = "computes"

    @hookimpl
    def planned(self, round: Round) -> None:
        if round.number in {5, 6}:
            start = time.thread_time()
            while time.thread_time() < start + 0.08:
                sum(range(1000))


class Prints(Plugin):
    """Standard output is the command's."""

    name = "prints"

    @hookimpl
    def round_done(self, round: Round) -> None:
        print("round", round.number)  # noqa:T201  # the fault that is planted


ON_RANKS: dict[type[Plugin], str] = {
    DecidesByClock: "mirrored ranks part in round",
    DecidesByEngineClock: "mirrored ranks part in round",
    IteratesASet: "mirrored ranks part in round",
    SortsByHash: "mirrored ranks part in round",
    ThrowsDice: "random numbers (module random)",
    ActsOnOneRank: "mirrored ranks part in round 3",
    AsksOneRankOnly: "ranks are not in step",
    ObserverActs: "observer hooks (round_done) change what happens",
    Sleeps: "committed sleeps",
    WaitsForAQueue: "iteration waited",
    WritesAFile: "committed opens a file (rounds.txt)",
    StartsAProcess: "planned starts a process",
    Computes: "planned computed",
    Prints: "writes to standard output: 'round",
    WaitsForEver: "hangs in planned (test_faulty_decisions.py",
}


@pytest.fixture(scope="module")
def found() -> dict[type[Plugin], list[str]]:
    """What two mirrored ranks say of each plugin; one pair of processes runs them all."""
    plugins = [*ON_RANKS, Cutting]
    return dict(
        zip(
            plugins,
            mirror_all([Subject(plugin=each, patience_s=0.5) for each in plugins]),
            strict=True,
        )
    )


@pytest.mark.parametrize("plugin", ON_RANKS, ids=lambda plugin: str(plugin.__name__))
def test_a_rank_of_its_own_mind_is_found(
    plugin: type[Plugin], found: dict[type[Plugin], list[str]]
) -> None:
    """What differs between ranks, or keeps their loop waiting, is told with the hook or round."""
    assert ON_RANKS[plugin] in "\n".join(found[plugin])


def test_mirrored_ranks_of_a_right_plugin_agree(found: dict[type[Plugin], list[str]]) -> None:
    """What the faults are made from has none."""
    assert found[Cutting] == []
