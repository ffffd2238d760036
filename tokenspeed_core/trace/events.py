# SPDX-License-Identifier: MIT
"""The events of a trace, as many as fit, and the file that Perfetto and Chrome read.

The format is Chrome's trace events in JSON; times are microseconds.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from attrs import define, field

MICROSECONDS = 1e6
Facts = Mapping[str, object]


@define(eq=False)
class Event:
    """One event: `kind` is the format's phase letter, `begin` and `end` are seconds."""

    kind: str
    name: str
    track: str
    begin: float
    end: float = 0.0
    flow: int = 0
    facts: Facts | None = None


@define(eq=False)
class TraceEvents:
    """The last events of one rank, with its tracks in the order they are shown."""

    most: int
    rank: int = 0
    begin: float = 0.0
    _events: deque[Event] = field(init=False)
    _tracks: dict[str, int] = field(factory=dict, init=False)
    num_dropped: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._events = deque(maxlen=self.most)

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def track(self, name: str) -> str:
        """Show a track, below those there are."""
        self._tracks.setdefault(name, len(self._tracks) + 1)
        return name

    def add(self, event: Event) -> None:
        """Keep an event; the oldest goes if there is no room."""
        self.num_dropped += len(self._events) == self.most
        self._events.append(event)

    def write(self, path: Path) -> None:
        """Write the file at once, or not at all. OSError where it cannot be."""
        encode = msgspec.json.Encoder().encode
        draft = path.with_name(f"{path.name}.part")
        with draft.open("wb") as file:
            file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
            for count, event in enumerate(self._maps()):
                file.write((b",\n" if count else b"\n") + encode(event))
            file.write(b"\n]}\n")
        os.replace(draft, path)

    def _maps(self) -> Iterator[dict[str, object]]:
        yield self._named("process_name", 0, name=f"rank {self.rank}")
        for name, track in self._tracks.items():
            yield self._named("thread_name", track, name=name)
            place = {"name": "thread_sort_index", "ph": "M", "pid": self.rank, "tid": track}
            yield {**place, "args": {"sort_index": track}}
        for event in self._events:
            yield self._map(event)

    def _named(self, what: str, track: int, *, name: str) -> dict[str, object]:
        return {"name": what, "ph": "M", "pid": self.rank, "tid": track, "args": {"name": name}}

    def _map(self, event: Event) -> dict[str, object]:
        found: dict[str, object] = {
            "name": event.name,
            "ph": event.kind,
            "pid": self.rank,
            "tid": self._tracks[event.track],
            "ts": self._us(event.begin - self.begin),
        }
        if event.kind == "X":
            found["dur"] = self._us(event.end - event.begin)
        if event.flow:
            found |= {"cat": "request", "id": event.flow}
        if event.kind in {"t", "f"}:
            found["bp"] = "e"  # bind to the slice around it, not to the next one
        if event.facts:
            found["args"] = event.facts
        return found

    @staticmethod
    def _us(seconds: float) -> float:
        return round(seconds * MICROSECONDS, 3)
