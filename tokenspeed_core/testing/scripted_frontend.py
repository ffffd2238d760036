# SPDX-License-Identifier: MIT
"""Frontends without a client: one that follows a script, one that a test hands messages."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from tokenspeed_core.testing.streams import Chunk, Received
from tokenspeed_hookspecs import AddRequest, ControlReply, Load, Message, OutputBatch

Reaction = Callable[[str, Chunk], Sequence[Message]]


class ManualFrontend:
    """Hands over what `put` left since the last round; never closes by itself.

    `received` has everything the engine sent, `sent` counts the requests put, by id, and `react`,
    where set, turns each chunk into messages of the next round.
    """

    def __init__(self, react: Reaction | None = None) -> None:
        self.received = Received()
        self.sent: Counter[str] = Counter()
        self.loads: list[Load] = []
        self.is_closed = False
        self.react = react
        self._pending: list[Message] = []

    def put(self, *messages: Message) -> None:
        """Leave messages for the next round."""
        for message in messages:
            if isinstance(message, AddRequest):
                self.sent[message.request_id] += 1
        self._pending += messages

    def close(self) -> None:
        """Let the engine stop after the round that reads this."""
        self.is_closed = True

    @property
    def has_pending(self) -> bool:
        """Whether messages wait for the next round."""
        return bool(self._pending)

    def receive(self, wait_s: float | None) -> Sequence[Message]:
        """What was put since the last call; never waits."""
        pending, self._pending = self._pending, []
        return pending

    def send(self, outputs: OutputBatch, load: Load) -> None:
        """Keep the chunks, and react to each."""
        self.loads.append(load)
        for request_id, chunk in self.received.take(outputs):
            if self.react is not None:
                self.put(*self.react(request_id, chunk))

    def reply(self, reply: ControlReply) -> None:
        """Keep a reply."""
        self.received.replies.append(reply)


class ScriptedFrontend:
    """One batch of messages a round, preceded by what the reaction made of the last outputs.

    It is closed once the script and the reactions are used up.
    """

    def __init__(
        self, script: Sequence[Sequence[Message]], reaction: Reaction | None = None
    ) -> None:
        self._script = deque(script)
        self._manual = ManualFrontend(reaction)

    @property
    def received(self) -> Received:
        """Everything the engine sent."""
        return self._manual.received

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left to hand over."""
        return not self._script and not self._manual.has_pending

    @property
    def has_pending(self) -> bool:
        """Whether something is left to hand over."""
        return not self.is_closed

    def receive(self, wait_s: float | None) -> Sequence[Message]:
        """The reactions to the last outputs, then this round's batch."""
        reactions = self._manual.receive(wait_s)
        batch = self._script.popleft() if self._script else ()
        return [*reactions, *batch]

    def send(self, outputs: OutputBatch, load: Load) -> None:
        """Keep the chunks, and react to each."""
        self._manual.send(outputs, load)

    def reply(self, reply: ControlReply) -> None:
        """Keep a reply."""
        self._manual.reply(reply)
