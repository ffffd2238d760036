# SPDX-License-Identifier: MIT
"""The file of a recording: a header, then a frame a round, each behind its length and CRC-32.

Frames are written by a thread of the file's own, as soon as their round is over: when an engine
dies, what it took in until then is there, without the mark that ends a file that was closed. The
file is bounded: past its limit no round can be replayed, and of those only the last are kept, for
people to read.
"""

from __future__ import annotations

import os
import queue
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from attrs import field, frozen

from tokenspeed_core.errors import EngineError

MAGIC = b"tokenspeed recording 2\n"
HEAD = struct.Struct("<II")
END = b""  # nothing that is recorded has no bytes
MOST_BYTES = 256 * 2**20
LAST_ROUNDS = 256
CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


@frozen
class RecordedPlugin:
    """A plugin of the recorded rank; `module` and `file` where it was given in Python."""

    name: str
    options: Mapping[str, Any]
    module: str = ""
    file: str = ""
    class_name: str = ""


@frozen(kw_only=True)
class Header:
    """What the recorded rank was: its configuration, plugins, groups and device, as plain maps."""

    config: str
    plugins: Sequence[RecordedPlugin]
    plane: Mapping[str, Any]
    rank: int = 0
    world_size: int = 1
    groups: Mapping[str, tuple[int, int]] = field(factory=dict)  # size and index
    has_frontend: bool = True
    has_text: bool = False
    versions: Mapping[str, str] = field(factory=dict)


@frozen
class Frame:
    """What one round took in, in the order it asked; `repeats` rounds took in the same.

    Frame 0 is what came before the first round. One that is `beyond` came after the file's limit.
    """

    number: int
    events: Sequence[tuple[str, Any]] = ()
    clocks: Sequence[float] = ()
    repeats: int = 1
    beyond: bool = False


class TapeWriter:
    """Takes frames and writes them elsewhere; `close` waits until all are written."""

    def __init__(self, path: Path, *, most_bytes: int = MOST_BYTES) -> None:
        # Prompts are in it, and options, which may hold passwords.
        self._file = os.fdopen(os.open(path, CREATE, 0o600), "wb")
        self._file.write(MAGIC)
        self._most_bytes = most_bytes
        self._written = 0
        self._last: deque[Frame] = deque(maxlen=LAST_ROUNDS)
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._encode = msgspec.msgpack.Encoder().encode
        self._thread = threading.Thread(target=self._write, name="tokenspeed-recording")
        self._thread.start()

    def header(self, header: Header) -> None:
        """Write the header, which comes first."""
        self._put(header)

    def frame(self, frame: Frame) -> None:
        """Write a frame, or keep it among the last ones once the file is full."""
        if self._written > self._most_bytes:
            kept = Frame(frame.number, frame.events, frame.clocks, frame.repeats, beyond=True)
            self._last.append(kept)
        else:
            self._put(frame)

    def close(self) -> None:
        """Write what is left and close the file; calling it again does nothing."""
        if self._file.closed:
            return
        for frame in self._last:
            self._put(frame)
        self._last.clear()
        self._queue.put(END)
        self._queue.put(None)
        self._thread.join()
        self._file.close()

    def _put(self, record: Header | Frame) -> None:
        payload = self._encode(record)
        self._written += len(payload) + HEAD.size
        self._queue.put(payload)

    def _write(self) -> None:
        while (payload := self._queue.get()) is not None:
            self._file.write(HEAD.pack(len(payload), zlib.crc32(payload)) + payload)
            if self._queue.empty():
                self._file.flush()


class Frames:
    """The frames of a file, as they are asked for. EngineError: one is damaged.

    `is_whole` once they were all read up to the end mark: without it the engine was killed, or the
    file was cut, or is still being written.
    """

    def __init__(self, payloads: Iterator[bytes]) -> None:
        self.is_whole = False
        self._payloads = payloads

    def __iter__(self) -> Iterator[Frame]:
        for payload in self._payloads:
            if payload == END:
                self.is_whole = True
                return
            yield msgspec.msgpack.decode(payload, type=Frame)


def read(path: Path) -> tuple[Header, Frames]:
    """The header and the frames; one that was cut short ends them.

    EngineError if the file is no recording. OSError as the disk says.
    """
    payloads = _payloads(path)
    try:
        header = msgspec.msgpack.decode(next(payloads), type=Header)
    except (StopIteration, msgspec.MsgspecError) as error:
        told = str(error) or "it ends before that"
        raise EngineError(f"{path} has no header of a recording: {told}") from error
    return header, Frames(payloads)


def _payloads(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise EngineError(
                f"{path} is no recording of this version: it does not begin with "
                f"{MAGIC.decode().strip()!r}"
            )
        while len(head := file.read(HEAD.size)) == HEAD.size:
            size, check = HEAD.unpack(head)
            payload = file.read(size)
            if len(payload) < size:
                return
            if zlib.crc32(payload) != check:
                end = file.tell()
                raise EngineError(f"{path} is damaged between bytes {end - size} and {end}")
            yield payload
