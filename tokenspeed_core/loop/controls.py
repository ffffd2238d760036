# SPDX-License-Identifier: MIT
"""The pause state of a rank: what a pause, a release and their ends do to it, and what they refuse.

Nothing here looks at a request or a device; whoever runs the round asks and acts. Every replica
rank gets the same requests in the same rounds, so every one of them is in the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from attrs import frozen

from tokenspeed_hookspecs import ControlReply

PAUSE, RESUME = "pause", "resume"
RELEASE, WAKE = "release_memory", "resume_memory"
MODES = ("abort", "wait", "keep")


class State(Enum):
    """Whether admissions, and forwards, are blocked."""

    RUNNING = "running"
    PAUSED = "paused"  # admissions
    FROZEN = "frozen"  # and forwards, by a `keep` pause
    RELEASED = "released"  # and forwards, because memory is gone


@frozen
class Drain:
    """An operation that is answered once the engine is empty; `regions` are then released."""

    name: str
    regions: tuple[str, ...] = ()


class Controls:
    """`regions` are the memory a release can free, in the order it does.

    A verb returns its reply, or None if the reply follows from a drain.
    """

    def __init__(self, regions: Sequence[str] = ()) -> None:
        self.state = State.RUNNING
        self.drain: Drain | None = None
        self.released: tuple[str, ...] = ()
        self.weight_version: str | None = None
        self._regions = tuple(regions)
        self._abort_all = False
        self._cancel_unscheduled = False
        self._replies: list[ControlReply] = []

    @property
    def admissions_blocked(self) -> bool:
        """Whether new requests are withheld from the scheduler."""
        return self.state is not State.RUNNING

    @property
    def forwards_blocked(self) -> bool:
        """Whether rounds plan no forward; everything else goes on."""
        return self.state is State.FROZEN or self.state is State.RELEASED

    @property
    def is_sleeping(self) -> bool:
        """Whether any memory region is released."""
        return bool(self.released)

    @property
    def is_releasing(self) -> bool:
        """Whether memory is released, or will be once the engine is empty."""
        return self.is_sleeping or (self.drain is not None and bool(self.drain.regions))

    def describe(self) -> dict[str, object]:
        """The state in plain words and lists."""
        waits_for = self.drain.name if self.drain is not None else None
        return {
            "name": self.state.value,
            "draining": waits_for,
            "released": list(self.released),
            "weight_version": self.weight_version,
        }

    # --- pausing ---------------------------------------------------------------------------------

    def pause(self, mode: object = "abort") -> ControlReply | None:
        """Block admissions, by `keep` forwards too; `abort` and `wait` answer once drained."""
        if mode not in MODES:
            return refused(PAUSE, f"invalid pause mode: {mode!r}; one of {', '.join(MODES)}")
        if self.drain is not None:
            return refused(PAUSE, "a pause is already in progress")
        if self.released:
            return refused(PAUSE, "memory is released; resume it before pausing")
        if mode == "keep":
            self.state = State.FROZEN
            return done(PAUSE)
        self._abort_all = mode == "abort"
        self._begin_drain(Drain(PAUSE))
        return None

    def resume(self) -> ControlReply:
        """Run again; an operation that still drains is answered first, with failure."""
        if self.released:
            return refused(RESUME, "memory is released; resume it to wake the engine")
        if self.drain is not None:
            word = "release" if self.drain.regions else "pause"
            self.reply(refused(self.drain.name, f"resumed before {word} drained"))
            self.drain = None
        self._run()
        return done(RESUME)

    # --- memory ----------------------------------------------------------------------------------

    def release(self, tags: object = None, *, refusal: str | None = None) -> ControlReply | None:
        """Free these regions, all by default, once what runs has finished.

        `refusal` is what a plugin says against it; the state's own reasons come first.
        """
        regions, problem = self._named(tags)
        problem = problem or self._release_problem(regions) or refusal
        if problem:
            return refused(RELEASE, problem)
        self._begin_drain(Drain(RELEASE, regions))
        return None

    def finish_drain(self) -> None:
        """Answer the operation that waited; a release has freed its regions by now."""
        drain = self.drain
        assert drain is not None, "a drain that is over was begun"
        self.drain = None
        if drain.regions:
            gone = {*self.released, *drain.regions}
            self.released = tuple(region for region in self._regions if region in gone)
            self.state = State.RELEASED
        self.reply(done(drain.name))

    def to_resume(self, tags: object = None) -> tuple[str, ...] | ControlReply:
        """The regions to take back, in that order, or the reply that needs nothing or refuses."""
        regions, problem = self._named(tags)
        if problem:
            return refused(WAKE, problem)
        if self.drain is not None:
            return refused(WAKE, "a pause or release is already in progress")
        missing = [region for region in regions if region not in self.released]
        if tags is not None and missing:
            return refused(WAKE, f"tags not released: {missing}")
        if not self.released:
            if self.state is State.RUNNING:
                return done(WAKE)
            return refused(WAKE, f"no memory is released; the engine is {self.state.value}")
        return tuple(region for region in reversed(self.released) if region in regions)

    def finish_resume(self, regions: Sequence[str]) -> ControlReply:
        """Forget that these were released; with the last one the engine runs again."""
        self.released = tuple(region for region in self.released if region not in regions)
        if not self.released:
            self._run()
        return done(WAKE)

    def loaded(self, version: str | None) -> None:
        """New weights are in place everywhere; without a version the last one is not theirs."""
        self.weight_version = version

    # --- what the round takes --------------------------------------------------------------------

    def take_abort_all(self) -> bool:
        """Whether every registered request is to be aborted, once."""
        taken, self._abort_all = self._abort_all, False
        return taken

    def take_cancel_unscheduled(self) -> bool:
        """Whether what has not reached the scheduler is to be aborted, once."""
        taken, self._cancel_unscheduled = self._cancel_unscheduled, False
        return taken

    def reply(self, reply: ControlReply) -> None:
        """Queue a reply; it leaves after the round's outputs, in queueing order."""
        self._replies.append(reply)

    def take_replies(self) -> list[ControlReply]:
        """The queued replies, which are the caller's from now on."""
        replies, self._replies = self._replies, []
        return replies

    # ---------------------------------------------------------------------------------------------

    def _begin_drain(self, drain: Drain) -> None:
        """What runs must be able to finish, so a freeze ends; without memory nothing runs."""
        self.drain = drain
        self.state = State.RELEASED if self.released else State.PAUSED
        self._cancel_unscheduled = True

    def _run(self) -> None:
        self.state = State.RUNNING
        self._abort_all = self._cancel_unscheduled = False

    def _named(self, tags: object) -> tuple[tuple[str, ...], str | None]:
        """The regions meant, in the configured order, or what is wrong with them."""
        if not self._regions:
            return (), "this engine's data plane cannot release memory"
        if tags is None:
            return self._regions, None
        named = list(tags) if isinstance(tags, list | tuple) else [tags]
        unknown = [tag for tag in named if tag not in self._regions]
        if unknown or not named:
            return (), f"invalid tags: {unknown or named}; valid: {list(self._regions)}"
        return tuple(region for region in self._regions if region in named), None

    def _release_problem(self, regions: Sequence[str]) -> str | None:
        gone = [region for region in regions if region in self.released]
        if gone:
            return f"tags already released: {gone}"
        if self.drain is not None:
            return "a pause or release is already in progress"
        return None


def done(name: str, message: str = "", **values: object) -> ControlReply:
    """A reply with success."""
    return ControlReply(name, success=True, message=message, values=values)


def refused(name: str, message: str) -> ControlReply:
    """A reply without success."""
    return ControlReply(name, success=False, message=message)
