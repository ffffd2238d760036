# SPDX-License-Identifier: MIT
"""Frames that went wrong on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

# Nested for ever, longer than memory, not msgpack, an extension that is a pickle.
WORST = (b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc1", b"\xd4\x01\x00")


def mutated(frames: Sequence[bytes], *, seed: int, count: int) -> Iterator[list[bytes]]:
    """So many messages made from these frames by one to four accidents each."""
    random = Random(seed)
    for _ in range(count):
        found = [bytearray(frame) for frame in frames]
        for _ in range(random.randint(1, 4)):
            random.choice(ACCIDENTS)(random, found)
        yield [bytes(frame) for frame in found] or [b""]


def _flip(random: Random, frames: list[bytearray]) -> None:
    frame = random.choice(frames)
    if frame:
        frame[random.randrange(len(frame))] = random.randrange(256)


def _cut(random: Random, frames: list[bytearray]) -> None:
    frame = random.choice(frames)
    del frame[random.randint(0, len(frame)) :]


def _insert(random: Random, frames: list[bytearray]) -> None:
    frame = random.choice(frames)
    at = random.randint(0, len(frame))
    frame[at:at] = random.choice((random.randbytes(random.randint(1, 8)), *WORST))


def _repeat(random: Random, frames: list[bytearray]) -> None:
    frame = random.choice(frames)
    at = random.randint(0, len(frame))
    frame[at:at] = frame[at : at + random.randint(1, 16)]


def _lose(random: Random, frames: list[bytearray]) -> None:
    if len(frames) > 1:
        del frames[random.randrange(len(frames))]


def _double(random: Random, frames: list[bytearray]) -> None:
    frames.insert(random.randint(0, len(frames)), bytearray(random.choice(frames)))


ACCIDENTS: tuple[Callable[[Random, list[bytearray]], None], ...] = (
    *(_flip, _flip, _flip, _cut, _insert, _repeat, _lose, _double),
)
