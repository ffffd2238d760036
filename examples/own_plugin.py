# SPDX-License-Identifier: MIT
"""A plugin of one's own: it changes admission, and watches rounds.

Each request names a tenant. A tenant has one request running at a time; its others wait their turn
before the scheduler knows them. The engine runs on the scripted data plane, which needs no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen

from tokenspeed_core import compose
from tokenspeed_hookspecs import (
    AdmissionStage,
    Engine,
    Hold,
    Pass,
    Plugin,
    Refuse,
    Request,
    Round,
    Verdict,
    hookimpl,
)


class Turns:
    """The admission stage: a request passes when its tenant runs fewer than so many others."""

    name = "turns"

    def __init__(self, engine: Engine, at_once: int) -> None:
        self._engine = engine
        self._at_once = at_once
        self._passed: dict[object, list[str]] = {}

    def enter(self, request: Request) -> Verdict:
        """Take a new request."""
        if "tenant" not in request.features:
            return Refuse("Invalid request: features must name a tenant.", status_code=400)
        return self._turn(request)

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """Every rank sees the same requests end, so there is nothing to agree on."""
        return [1] * len(held)

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Let pass whose turn it is, in the order of arrival."""
        return [self._turn(request) for request in held]

    def leave(self, request_id: str) -> None:
        """Nothing is kept for a request that waits."""

    def _turn(self, request: Request) -> Verdict:
        tenant = request.features["tenant"]
        passed = self._passed.get(tenant, [])
        # An id may come again; the request that had it before does not run any more.
        earlier = [each for each in passed if each != request.request_id]
        running = [each for each in earlier if self._engine.requests.get(each) is not None]
        if len(running) >= self._at_once:
            return Hold()
        self._passed[tenant] = [*running, request.request_id]
        return Pass()


class FairTurns(Plugin):
    """The plugin: it brings the stage, and keeps what it saw."""

    name = "fair_turns"
    features = ("tenant",)

    @frozen
    class Options:
        """Flags, keys of the table `[fair_turns]`, or arguments of `compose`."""

        at_once: int = field(
            default=1, metadata={"help": "running requests a tenant", "minimum": 1}
        )

    def __init__(self, options: Options, engine: Engine) -> None:
        super().__init__(options, engine)
        self.turns = Turns(engine, options.at_once)
        self.most_rows = 0
        self.finished: list[str] = []

    @hookimpl
    def admission_stages(self) -> Sequence[AdmissionStage]:
        return [self.turns]

    @hookimpl
    def request_finished(self, round: Round) -> None:
        if round.finished is not None:
            self.finished.append(round.finished.request_id)

    @hookimpl
    def round_done(self, round: Round) -> None:
        if round.batch is not None:
            self.most_rows = max(self.most_rows, len(round.batch.request_ids))


def main() -> None:
    """Two tenants, one of them greedy: the modest one does not wait for the greedy one."""
    with compose(data_plane="scripted", plugins=[FairTurns], fair_turns={"at_once": 1}) as engine:
        streams = [
            engine.stream(
                [1, 2, 3], max_new_tokens=4, request_id=name, features={"tenant": name[0]}
            )
            for name in ("a1", "a2", "a3", "b1")
        ]
        refused = engine.generate([1, 2, 3], max_new_tokens=4)
        for stream in streams:
            stream.completion()
        (seen,) = (p.instance for p in engine.rank.plugins if isinstance(p.instance, FairTurns))
        print("finished:", ", ".join(seen.finished))
        print("most rows of a round:", seen.most_rows)
        print("without a tenant:", refused.finish.message)


if __name__ == "__main__":
    main()
