# SPDX-License-Identifier: MIT
"""Where requests wait for their turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from attrs import define, field

from acme_key_limits.limits import Bucket, KeyLimit
from tokenspeed_hookspecs import Engine, Hold, Pass, Refuse, Request, Verdict

OTHERS = "others"
TOO_MANY = 429
Told = Callable[[str, str], None]


@define(eq=False)
class Turns:
    """An admission stage. `limits` has `others`; `tell(key, outcome)` counts outcomes."""

    engine: Engine
    limits: Mapping[str, KeyLimit]
    most_running: int
    tell: Told
    name: str = "key_limits"
    waiting: Counter[str] = field(factory=Counter)
    _held: dict[str, str] = field(factory=dict)  # request id to key
    _running: dict[str, str] = field(factory=dict)
    _buckets: dict[str, Bucket] = field(factory=dict)

    def enter(self, request: Request) -> Verdict:
        """Let a request wait, or refuse it where too many wait already."""
        key = self.key_of(request)
        most = self.limits[key].waiting
        self._running.pop(request.request_id, None)  # the id of an earlier request
        if most and self.waiting[key] >= most:
            self.tell(key, "refused")
            return Refuse(
                f"Too many requests: {most} of key {key!r} wait already; retry later.", TOO_MANY
            )
        self._held[request.request_id] = key
        self.waiting[key] += 1
        return Hold()

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """1 where this rank's clock lets the key send; the ranks agree on the least."""
        now = self.engine.clock()
        left = {key: self._bucket(key, now).available(now) for key in {*self._held.values()}}
        codes = []
        for request in held:
            key = self._held[request.request_id]
            left[key] -= 1
            codes.append(int(left[key] >= 0))
        return codes

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Let go whose turn it is: by priority, then in the order of arrival."""
        self._forget_ended()
        ready = [place for place, code in enumerate(agreed) if code]
        ready.sort(key=lambda place: self.limits[self._held[held[place].request_id]].priority)
        going = {place for place in ready if self._goes(held[place].request_id)}
        return [Pass() if place in going else Hold() for place in range(len(held))]

    def leave(self, request_id: str) -> None:
        """Forget a request that ended while it waited."""
        key = self._held.pop(request_id)
        self.waiting[key] -= 1
        self.tell(key, "left")

    def key_of(self, request: Request) -> str:
        """The key whose limits hold for a request."""
        key = request.features.get("api_key")
        return key if isinstance(key, str) and key in self.limits else OTHERS

    def _goes(self, request_id: str) -> bool:
        key = self._held[request_id]
        at_once = self.limits[key].at_once
        if len(self._running) >= self.most_running:
            return False
        if at_once and Counter(self._running.values())[key] >= at_once:
            return False
        del self._held[request_id]
        self.waiting[key] -= 1
        self._running[request_id] = key
        self._buckets[key].take()
        self.tell(key, "admitted")
        return True

    def _forget_ended(self) -> None:
        for request_id in list(self._running):
            if self.engine.requests.get(request_id) is None:
                del self._running[request_id]

    def _bucket(self, key: str, now: float) -> Bucket:
        if key not in self._buckets:
            self._buckets[key] = Bucket(self.limits[key], now)
        return self._buckets[key]
