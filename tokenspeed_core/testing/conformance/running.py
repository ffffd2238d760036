# SPDX-License-Identifier: MIT
"""An engine with the plugin under test, and what may be asked of it within a limit.

The scripted device is done at once, a plugin's own threads are not: a round in which nothing
happened gives them a moment, and what never comes is an error that says what was waited for.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

from attrs import evolve

from tokenspeed_core.composition.selection import Chosen, PluginChoice
from tokenspeed_core.testing.conformance.subject import Features, Subject
from tokenspeed_core.testing.conformance.watching import Watcher, watched
from tokenspeed_core.testing.engine import EngineFixture, EngineSetup, Tiers
from tokenspeed_core.testing.messages import request, telling_tokens
from tokenspeed_core.testing.scripted_frontend import ManualFrontend
from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_core.testing.streams import Stream
from tokenspeed_hookspecs import AddRequest, ControlReply, ControlRequest, Plugin

LIMIT_ROUNDS = 3000  # that do something
NAP_S, MOST_NAP_S = 0.0005, 0.002  # and what one counts for, however long it took
PATIENCE = 30  # rounds without an event before the plugin's threads get a nap each round
STUCK = 10  # times its patience: it is the rounds themselves that take so long
PROMPT, BUDGET = 40, 6
SCHEDULER = {
    "num_pages": 40,
    "host_pages": 60,
    "max_batch_size": 4,
    "max_scheduled_tokens": 32,
    "force_retraction_every": 7,
}
PLAIN: Features = MappingProxyType({})
_nap, _now = time.sleep, time.monotonic


class PluginFaultError(Exception):
    """The plugin does what it must not; the text says what, and where."""


class ContractEngine:
    """One rank with the plugin, watched. `stop` it; `with running(subject)` does."""

    def __init__(
        self,
        subject: Subject,
        *others: Chosen,
        plugin: type[Plugin] | None = None,
        plane: Mapping[str, object] = PLAIN,
    ) -> None:
        self.subject = subject
        self.watcher = Watcher()
        setup = setup_of(subject, self.watcher, *others, plugin=plugin)
        self.engine = EngineFixture(evolve(setup, plane={**setup.plane, **plane}))
        self.is_stopped = False
        self.asked: list[str] = []
        self.states: list[weakref.ref[object]] = []
        self._numbers = itertools.count()

    @property
    def instance(self) -> Plugin:
        """The plugin's instance of this rank."""
        found = {each.name: each.instance for each in self.engine.rank.plugins}
        instance = found[self.subject.name]
        assert instance is not None, "a composed rank has made its plugins"
        return instance

    def stop(self) -> None:
        """Stop the rank."""
        self.is_stopped = True
        self.engine.rank.stop()

    def new(self, features: Features = PLAIN, *, budget: int = BUDGET) -> str:
        """Leave a request of this kind for the next round; returns its id."""
        request_id = f"r{next(self._numbers)}"
        self.engine.put(made(request_id, features, budget=budget))
        return request_id

    def until_gone(self, request_id: str) -> None:
        """Run until the engine no longer knows a request."""
        requests = self.engine.loop.requests
        self.until(lambda: requests.get(request_id) is None, f"{request_id!r} is never let go")

    def until_ended_again(self, request_id: str) -> None:
        """Run until the last of several requests of an id ended."""
        received, frontend = self.engine.received, self.engine.frontend
        assert isinstance(frontend, ManualFrontend), "this engine was made with one"
        sent = frontend.sent
        self.until(
            lambda: (
                len(received.all_of(request_id)) == sent[request_id] and self._has_ended(request_id)
            ),
            f"request {request_id!r}, whose id was used before, never ended",
        )

    def reuse(self, request_id: str, features: Features) -> None:
        """Leave another request of an id."""
        self.engine.put(made(request_id, features))

    def round(self) -> None:
        """Run one round, and remember the requests it knows without holding them."""
        self.engine.round()
        requests = self.engine.loop.requests
        known = (requests.get(each) for each in requests.ids())
        if len(self.states) < 1000:
            self.states += [weakref.ref(each) for each in known if each is not None]

    def rounds(self, count: int) -> None:
        """Run so many rounds."""
        for _ in range(count):
            self.round()

    def until(self, condition: Callable[[], object], waited_for: str) -> None:
        """Run rounds until the condition holds; PluginFaultError past the limit.

        Patience is counted in naps: where other processes are busy, threads take longer.
        """
        patience_s = self.subject.patience_s
        end, moving, quiet, napped_s = _now() + STUCK * patience_s, 0, 0, 0.0
        while moving < LIMIT_ROUNDS and napped_s < patience_s and _now() < end:
            if condition():
                return
            self.round()
            if self._is_moving():
                moving, quiet = moving + 1, 0
                continue
            quiet += 1
            if quiet > PATIENCE:
                begin = _now()
                _nap(NAP_S)
                napped_s += min(_now() - begin, MOST_NAP_S)
        if not condition():
            raise PluginFaultError(f"{waited_for}: {self._where()}")

    def until_ended(self, *request_ids: str) -> list[Stream]:
        """Run until each of these ended; returns their streams."""
        received = self.engine.received
        for request_id in request_ids:
            ended = partial(self._has_ended, request_id)
            self.until(ended, f"request {request_id!r} never ended")
        return [received[name] for name in request_ids]

    def ask(self, name: str, **arguments: object) -> ControlReply:
        """Ask for a control operation and wait for its one reply."""
        replies = self.engine.received.replies
        count = len(replies)
        self.asked.append(name)
        self.engine.put(ControlRequest(name, arguments))
        told = f"control operation {name}{_shown(arguments)} was never answered"
        self.until(lambda: len(replies) > count, told)
        return replies[count]

    def to_idle(self) -> None:
        """Run until nothing is left; PluginFaultError or AssertionError says what is."""
        loop = self.engine.loop
        self.until(lambda: not len(loop.requests), "some request is never let go")
        self.engine.to_idle()

    def _has_ended(self, request_id: str) -> bool:
        return self.engine.received[request_id].finish is not None

    def _is_moving(self) -> bool:
        last = self.engine.loop.last_round
        return last.batch is not None or last.num_outputs > 0

    def _where(self) -> str:
        loop, held = self.engine.loop, self.watcher.held
        left = [
            f"{name!r} is held by its admission stage {held[name]!r}"
            if name in held
            else repr(name)
            for name in loop.requests.ids()
        ]
        state = loop.controls.describe()
        if state["draining"] and not left:
            return f"{state['draining']} still drains though nothing runs; see drain_blocked"
        return f"left are {', '.join(left) or 'no requests'}"


def setup_of(
    subject: Subject, watcher: Watcher, *others: Chosen, plugin: type[Plugin] | None = None
) -> EngineSetup:
    """A small engine with everything a plugin may meet: chunks, retractions, a host tier, and a
    tokenizer. `plugin` stands in for the subject's own class."""
    under_test = watched(plugin or subject.plugin, watcher)
    tokenizer = small_tokenizer()
    return EngineSetup(
        tiers=Tiers.HOST_AND_FORCED_RETRACTION,
        scheduler=SCHEDULER,
        plane={"vocab_size": tokenizer.vocab_size},
        plugins=(PluginChoice(under_test, subject.options), *others),
        tokenizer=tokenizer,
        decode_text=tokenizer.decode,
    )


def made(request_id: str, features: Features, *, budget: int = BUDGET) -> AddRequest:
    """A request of this kind, whose prompt takes two chunks."""
    return evolve(request(request_id, PROMPT, budget=budget), features=features)


@contextmanager
def running(
    subject: Subject, *others: Chosen, plane: Mapping[str, object] = PLAIN
) -> Iterator[ContractEngine]:
    """A started engine, stopped at the end; what its watcher saw is a PluginFaultError."""
    engine = ContractEngine(subject, *others, plane=plane)
    try:
        yield engine
    finally:
        engine.stop()
    if engine.watcher.faults:
        raise PluginFaultError("; ".join(engine.watcher.faults))


def check_tokens(streams: Sequence[Stream]) -> None:
    """PluginFaultError unless a stream that ran its length has the device's tokens."""
    for stream in streams:
        told = stream.tokens
        if stream.kind == "length" and told != telling_tokens(len(told)):
            raise PluginFaultError(
                f"request {stream.request_id!r} of no feature was sent {told[:8]}, the device gave "
                f"{telling_tokens(len(told))[:8]}"
            )


def _shown(arguments: object) -> str:
    return f" {arguments}" if arguments else ""
