# SPDX-License-Identifier: MIT
"""How a file store writes and reads: whole objects, without a copy of the page in between."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from attrs import define, field

from tokenspeed_l3.frames import head_of, head_size
from tokenspeed_l3.stores.directory import NO_SPACE, Directory, Workspace, remove_file, space_of

WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# A directory may vanish between its making and the renaming into it, because it was empty.
ATTEMPTS = 8


@define(eq=False)
class Draft:
    """An object on its way to its name."""

    key: str
    page: memoryview
    path: str
    is_stored: bool = field(init=False, default=False)
    _fd: int = field(init=False, default=-1)

    @property
    def space(self) -> int:
        """What its file takes."""
        return space_of(head_size(self.key) + len(self.page))

    def write(self) -> None:
        """Write it under a name nobody looks for."""
        self._fd = os.open(self.path, WRITE, 0o666)
        _write_all(self._fd, [memoryview(head_of(self.key, self.page)), self.page])

    def sync(self) -> None:
        """Wait until the disk has it."""
        os.fdatasync(self._fd)

    def publish(self, directory: Directory) -> None:
        """Give it its name, at which there may be the same object already."""
        target = directory.path(self.key)
        for attempt in range(ATTEMPTS):
            try:
                if attempt:
                    directory.make_parents(target)
                os.rename(self.path, target)
                self.is_stored = True
                return
            except FileNotFoundError:
                if attempt == ATTEMPTS - 1:
                    raise

    def discard(self) -> None:
        """Close it, and delete what did not get its name."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if not self.is_stored:
            with suppress(OSError):
                remove_file(self.path)


@define(eq=False)
class Writer:
    """Writes batches; a disk without space is told apart from one that fails."""

    directory: Directory
    workspace: Workspace
    syncs: bool

    def drafts(self, objects: Sequence[tuple[str, memoryview]]) -> list[Draft]:
        """Objects on their way, for `put`; the folder they are written in is there then."""
        self.workspace.renew()
        return [Draft(key, page, self.workspace.draft()) for key, page in objects]

    def put(self, drafts: Sequence[Draft]) -> None:
        """Store objects; those for which there was no space are not stored. OSError: all else, and
        some may be stored."""
        try:
            # Steps of all before the next step of one: a sync then finds others' bytes to write
            # along, and one commit of the file system's journal covers many.
            rest = [each for each in drafts if _fits(each.write, each)]
            if self.syncs:
                rest = [each for each in rest if _fits(each.sync, each)]
            for draft in rest:
                _fits(lambda draft=draft: draft.publish(self.directory), draft)  # type: ignore[misc]  # bound in the loop
        finally:
            for draft in drafts:
                draft.discard()


def read_page(fd: int, key: str, *, page: memoryview) -> bool:
    """Read an object's page; whether the file is exactly that object."""
    head = bytearray(head_size(key))
    if os.fstat(fd).st_size != len(head) + len(page):
        return False
    views, place = [memoryview(head), page], 0
    while views:
        count = os.preadv(fd, views, place)
        if count == 0:
            return False
        place += count
        views = _behind(views, count)
    return head == head_of(key, page)


def _write_all(fd: int, views: list[memoryview]) -> None:
    while views:
        views = _behind(views, os.writev(fd, views))


def _behind(views: list[memoryview], count: int) -> list[memoryview]:
    """What of the views is left behind so many bytes."""
    rest: list[memoryview] = []
    for view in views:
        if count < len(view):
            rest.append(view[count:])
        count = max(0, count - len(view))
    return rest


def _fits(step: Callable[[], None], draft: Draft) -> bool:
    try:
        step()
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        draft.discard()
        return False
    return True
