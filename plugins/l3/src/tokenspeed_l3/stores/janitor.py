# SPDX-License-Identifier: MIT
"""What keeps a file store's directory in its limits, on a thread of its own.

It deletes the longest unused objects, namespaces that were removed, and what dead processes left.
Any process may clean, one at a time; the others go on meanwhile, so a file may vanish under them
or come while it looks. The limit is `max_size`, or less where the disk itself is nearly full.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from attrs import define, field

from tokenspeed_l3.stores.directory import (
    PRIVATE,
    Directory,
    Tally,
    locked,
    remove_file,
    space_of,
    sweep_drafts,
)

# Cleaning begins above the first share of the limit, and ends below the second.
HIGH, LOW = 0.95, 0.85
# How many files it looks at before it lets the others run, and how long.
TURN, PAUSE_S = 64, 0.001
# An empty directory that changed within this time may be about to be used.
SETTLED_S = 60.0


class _File(NamedTuple):
    path: str
    used_at: float
    space: int


@define(eq=False)
class Janitor:
    """Cleans when asked, in the background; `evicted` counts objects.

    Only one that puts drops objects for room: who merely looks may not know the limit.
    """

    directory: Directory
    tally: Tally
    max_size: int
    min_free: int
    evicted: int = field(init=False, default=0)
    _asked: threading.Event = field(init=False, factory=threading.Event)
    _stopping: threading.Event = field(init=False, factory=threading.Event)
    _puts: threading.Event = field(init=False, factory=threading.Event)
    _thread: threading.Thread | None = field(init=False, default=None)
    _starting: threading.Lock = field(init=False, factory=threading.Lock)

    def begin(self) -> None:
        """Learn that objects are put from now on: the first time all that is there is counted."""
        if not self._puts.is_set():
            self._puts.set()
            self.ask()

    def ask(self) -> None:
        """Clean soon."""
        self._asked.set()
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="l3-janitor", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stop after the file at hand."""
        self._stopping.set()
        self._asked.set()
        if self._thread is not None:
            self._thread.join()

    def _clean(self) -> None:
        with locked(f"{self.directory.root}/{PRIVATE}/cleaning", wait=False) as fd:
            if fd is None:
                return
            self._delete_removed()
            sweep_drafts(self.directory)
            if self._puts.is_set():
                self._evict()

    def has_room(self, size: int) -> bool:
        """Whether the disk has so much besides what is to stay free."""
        return self._free() >= size

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._stopping.is_set():
                return
            try:
                self._clean()
            except OSError:
                # The calls meet the same error and tell it; the next one asked cleans again.
                continue

    def _free(self) -> int:
        disk = os.statvfs(self.directory.root)
        return disk.f_bavail * disk.f_frsize - self.min_free

    def _delete_removed(self) -> None:
        for entry in os.scandir(self.directory.removed):
            if not entry.is_dir(follow_symlinks=False):
                remove_file(entry.path)
                continue
            # From below, so that it can stop in the middle of a large one.
            for path, _, _ in os.walk(entry.path, topdown=False):
                if self._stopping.is_set():
                    return
                shutil.rmtree(path, ignore_errors=True)

    def _evict(self) -> None:
        before = self.tally.add(0)
        ages, spaces = array("d"), array("q")
        for each in self._files(prunes=True):
            ages.append(each.used_at)
            spaces.append(each.space)
        if self._stopping.is_set():
            return
        total = sum(spaces)
        # What was put meanwhile is in the change of the tally. What was being written when the
        # count began may be missing until the next one: HIGH is low enough to leave room for it.
        now = self.tally.add(total - before)
        limit = min(self.max_size, now + self._free())
        if now <= HIGH * limit:
            return
        excess = now - LOW * limit
        self._delete_until(_cutoff(ages, spaces, excess=excess), excess=excess)

    def _delete_until(self, cutoff: float, *, excess: float) -> None:
        for each in self._files():
            if excess <= 0:
                return
            if each.used_at <= cutoff and remove_file(each.path):
                excess -= each.space
                self.tally.add(-each.space)
                self.evicted += 1

    def _files(self, *, prunes: bool = False) -> Iterator[_File]:
        """All objects until stopped; `prunes` deletes directories without any."""
        for number, path in enumerate(self.directory.directories()):
            found = list(_entries(path))
            if not found and prunes:
                _prune(path)
            yield from found
            if self._stopping.is_set():
                return
            if number % TURN == 0 or len(found) > TURN:
                time.sleep(PAUSE_S)


def _entries(path: str) -> Iterator[_File]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                facts = entry.stat(follow_symlinks=False)
                yield _File(entry.path, facts.st_mtime, space_of(facts.st_size))
    except (FileNotFoundError, NotADirectoryError):
        return


def _prune(path: str) -> None:
    """Delete a directory and those above it up to the namespace's, as far as they are empty and
    nobody just made them."""
    for _ in range(3):
        try:
            if time.time() - os.stat(path).st_mtime < SETTLED_S:
                return
            os.rmdir(path)
        except OSError:
            return
        path = os.path.dirname(path)


def _cutoff(ages: array[float], spaces: array[int], *, excess: float) -> float:
    """The age up to which objects go."""
    for index in sorted(range(len(ages)), key=ages.__getitem__):
        excess -= spaces[index]
        if excess <= 0:
            return ages[index]
    return float("inf")
