# SPDX-License-Identifier: MIT
"""`file:/path`: a file an object, in a directory that ranks, engines and machines may share.

A reader sees a whole object or none: an object is written under a name of its own, synced, and
renamed. Whatever happens to it afterwards its head finds out (`frames.py`), and a damaged file is
deleted. What does not fit is not stored, counted, and no error: space returns.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from attrs import field, frozen
from attrs.validators import ge, gt, min_len

from tokenspeed_l3.calls import RunningCalls
from tokenspeed_l3.frames import LONGEST_HEAD, head_size, key_of, problem_of
from tokenspeed_l3.store import IoResult, StoredObject, StoreError
from tokenspeed_l3.store_options import read_options
from tokenspeed_l3.stores.directory import (
    PRIVATE,
    Directory,
    Tally,
    Workspace,
    names_in,
    remove_file,
    space_of,
)
from tokenspeed_l3.stores.drafts import Draft, Writer, read_page
from tokenspeed_l3.stores.janitor import HIGH, Janitor

# Objects of a batch that are written together.
CHUNK = 32
# A read object's time of use is renewed only if it is older: a write for each read is too many.
TOUCH_S = 10.0
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@frozen(kw_only=True)
class FileOptions:
    """The settings of a file store: its directory, the most all objects may take, what stays free
    on the disk, and whether objects are synced before they are seen."""

    location: str = field(validator=min_len(1))
    max_size: int = field(default=20 << 30, validator=gt(0))
    min_free: int = field(default=256 << 20, validator=ge(0))
    sync: bool = True


class FileStore:
    """Objects in files."""

    def __init__(self, options: Mapping[str, object], *, buffers: Sequence[memoryview]) -> None:
        self._options = read_options(FileOptions, options, store="file")
        self._directory = Directory(os.path.abspath(self._options.location))
        self._directory.prepare()
        self._tally = Tally(f"{self._directory.root}/{PRIVATE}/tally")
        self._janitor = Janitor(
            self._directory,
            tally=self._tally,
            max_size=self._options.max_size,
            min_free=self._options.min_free,
        )
        self._workspace = Workspace(self._directory)
        self._writer = Writer(self._directory, self._workspace, syncs=self._options.sync)
        self._counts = Counter({"failed": 0, "no_space": 0})
        self._calls = RunningCalls()
        with self._errors():
            self._tally.add(0)
            self._workspace.open()

    @property
    def failures_retire(self) -> bool:
        """Nothing touches a page once a call has returned."""
        return True

    def batch_exists(self, keys: Sequence[str]) -> list[bool]:
        """Which keys have a file."""
        with self._calls, self._errors():
            return [_stat(self._directory.path(key)) is not None for key in keys]

    def batch_get_into(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Read files into pages."""
        success, failed = [False] * len(keys), [False] * len(keys)
        with self._calls, self._errors():
            for index, (key, page) in enumerate(zip(keys, pages, strict=True)):
                found = self._get(key, page)
                success[index], failed[index] = found is True, found is False
        return IoResult(success, failed)

    def batch_put_from(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Write pages to files."""
        pairs = list(zip(keys, pages, strict=True))
        success: list[bool] = []
        with self._calls, self._errors():
            self._janitor.begin()
            for start in range(0, len(pairs), CHUNK):
                success += self._put(pairs[start : start + CHUNK])
        return IoResult(success)

    def remove_by_prefix(self, prefix: str) -> bool:
        """Move a namespace's directory away; it is deleted in the background."""
        path = self._directory.namespace(prefix.removesuffix("/"))
        with self._calls, self._errors():
            if _stat(path) is not None:
                with suppress(FileNotFoundError):
                    os.rename(path, f"{self._directory.removed}/{uuid.uuid4().hex}")
            is_gone = _stat(path) is None
        self._janitor.ask()
        return is_gone

    def close(self) -> None:
        """Wait for running calls and stop cleaning."""
        if self._calls.close():
            self._janitor.stop()
            self._workspace.close()

    def counts(self) -> Mapping[str, int]:
        """Objects that were damaged, that found no space, and that were evicted here."""
        return {**self._counts, "evicted": self._janitor.evicted}

    # --- for commands ----------------------------------------------------------------------------

    def objects(self) -> Iterator[StoredObject]:
        """All files at the place of their key, whole or not."""
        for directory in self._directory.directories():
            with self._calls, self._errors():
                names = sorted(names_in(directory))
                found = [self._look(f"{directory}/{name}") for name in names]
            yield from filter(None, found)

    def check(self, key: str) -> str | None:
        """What is wrong with a file."""
        with self._calls, self._errors():
            try:
                return problem_of(key, _read(self._directory.path(key)))
            except FileNotFoundError:
                raise KeyError(key) from None
            except OSError as error:
                return f"it cannot be read: {error.strerror}"

    def remove(self, key: str) -> bool:
        """Delete one file."""
        path = self._directory.path(key)
        with self._calls, self._errors():
            if (facts := _stat(path)) is None or not remove_file(path):
                return False
            self._tally.add(-space_of(facts.st_size))
            return True

    # --- inside ----------------------------------------------------------------------------------

    def _get(self, key: str, page: memoryview) -> bool | None:
        """True: the page holds the object; False: the object is bad, and deleted; None: none."""
        path = self._directory.path(key)
        try:
            fd = os.open(path, READ)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ESTALE}:
                return None
            if error.errno == errno.ELOOP:
                return self._reject(path)
            raise
        try:
            if not read_page(fd, key, page=page):
                return self._reject(path)
            _touch(fd, os.fstat(fd))
        finally:
            os.close(fd)
        return True

    def _reject(self, path: str) -> bool:
        self._counts["failed"] += 1
        with suppress(OSError):
            # Where it may not be deleted it stays, and fails each time.
            remove_file(path)
        return False

    def _put(self, pairs: Sequence[tuple[str, memoryview]]) -> list[bool]:
        """Store some objects; which of them are there now."""
        success = [self._is_there(key, page) for key, page in pairs]
        wanted = [index for index, is_there in enumerate(success) if not is_there]
        spaces = [space_of(head_size(pairs[index][0]) + len(pairs[index][1])) for index in wanted]
        claimed = self._claim(spaces)
        drafts: list[Draft] = []
        try:
            drafts = self._writer.drafts([pairs[index] for index in wanted[:claimed]])
            self._writer.put(drafts)
            for index, draft in zip(wanted, drafts, strict=False):
                success[index] = draft.is_stored
        finally:
            stored = sum(each.space for each in drafts if each.is_stored)
            if held := sum(spaces[:claimed]) - stored:
                self._tally.add(-held)
        if missing := success.count(False):
            self._counts["no_space"] += missing
            self._janitor.ask()
        return success

    def _is_there(self, key: str, page: memoryview) -> bool:
        path = self._directory.path(key)
        facts = _stat(path)
        if facts is None or facts.st_size != head_size(key) + len(page):
            return False
        _touch(path, facts)
        return True

    def _look(self, path: str) -> StoredObject | None:
        """A file as an object: its name tells the key, or the head where the name is a digest."""
        key, facts = self._directory.key(path) or _key_in(path), _stat(path)
        if key is None or facts is None or self._directory.path(key) != path:
            return None
        size = max(0, facts.st_size - head_size(key))
        return StoredObject(key, size, max(0.0, time.time() - facts.st_mtime))

    def _claim(self, spaces: Sequence[int]) -> int:
        """How many of them may be written, which then count."""
        if not spaces or not self._janitor.has_room(sum(spaces)):
            return 0
        count, total = self._tally.claim(spaces, limit=self._options.max_size)
        if total > HIGH * self._options.max_size:
            self._janitor.ask()
        return count

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            root = self._directory.root
            if isinstance(error, FileNotFoundError) and not self._directory.is_marked():
                raise StoreError(
                    f"file store {root}: it is gone ({error}); was it deleted or unmounted?"
                ) from error
            raise StoreError(f"file store {root}: {error}") from error


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _touch(file: int | str, facts: os.stat_result) -> None:
    """Note that the file was of use just now."""
    if time.time() - facts.st_mtime > TOUCH_S:
        with suppress(OSError):
            # It vanished, or may only be read, and is of use all the same.
            os.utime(file)


def _key_in(path: str) -> str | None:
    try:
        return key_of(_read(path, LONGEST_HEAD))
    except OSError:
        return None


def _read(path: str, size: int = -1) -> bytes:
    with open(path, "rb", opener=lambda path, _: os.open(path, READ)) as file:
        return file.read(size)
