# SPDX-License-Identifier: MIT
"""The directory of a file store: `{namespace}/ab/cd/{name}`, and a private one beside them.

    .tokenspeed-l3/format         what made this directory; without it nothing here is touched
    .tokenspeed-l3/tally          how many bytes all objects take, shared by all processes
    .tokenspeed-l3/cleaning       locked by the one that cleans
    .tokenspeed-l3/tmp/ID/        one process's unfinished objects, ID.lock held while it lives
    .tokenspeed-l3/removed/ID/    a namespace that was removed, not yet deleted

Everything is made under `tmp`, complete, and renamed to where it is found.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate

from attrs import define, field, frozen

from tokenspeed_l3.store import StoreError

PRIVATE = ".tokenspeed-l3"
FORMAT = b"tokenspeed l3 file store 1\n"
PLAIN = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,199}")
HASHED = "~"
BLOCK = 4096
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
FOREIGN = frozenset({"lost+found"})


@frozen
class Directory:
    """Where things are below a root."""

    root: str

    @property
    def tmp(self) -> str:
        """Where unfinished objects are."""
        return f"{self.root}/{PRIVATE}/tmp"

    @property
    def removed(self) -> str:
        """Where removed namespaces go."""
        return f"{self.root}/{PRIVATE}/removed"

    def path(self, key: str) -> str:
        """Where the object of a key is; always below the root, whatever the key."""
        namespace, slash, name = key.partition("/")
        place = hashlib.blake2b(name.encode(), digest_size=2).hexdigest()
        file = safe_name(name) if slash else HASHED
        return f"{self.namespace(namespace)}/{place[:2]}/{place[2:]}/{file}"

    def key(self, path: str) -> str | None:
        """The key of the object that belongs at a path; None where the path does not tell."""
        namespace, *_, name = path.removeprefix(f"{self.root}/").split("/")
        key = f"{namespace}/{name}"
        return key if self.path(key) == path else None

    def namespace(self, name: str) -> str:
        """Where the objects of a namespace are."""
        return f"{self.root}/{safe_name(name)}"

    def prepare(self) -> None:
        """Make the directory, or see that it is one. StoreError: it is something else."""
        try:
            os.makedirs(self.root, mode=0o700, exist_ok=True)
            found = set(os.listdir(self.root)) - FOREIGN
            if found and PRIVATE not in found:
                raise StoreError(
                    f"expected an empty directory or a file store at {self.root}, found "
                    f"{min(found)!r} in it; is the path right?"
                )
            for path in (self.tmp, self.removed):
                os.makedirs(path, exist_ok=True)
            self._mark()
        except OSError as error:
            raise StoreError(f"no file store at {self.root}: {error}") from error

    def make_parents(self, path: str) -> None:
        """Make the directories of an object's path, but not the root."""
        parts = path.removeprefix(f"{self.root}/").split("/")[:-1]
        for end in range(1, len(parts) + 1):
            with suppress(FileExistsError):
                os.mkdir(f"{self.root}/{'/'.join(parts[:end])}")

    def is_marked(self) -> bool:
        """Whether the directory is still a store's: not unmounted, not replaced."""
        return os.path.exists(f"{self.root}/{PRIVATE}/format")

    def directories(self) -> Iterator[str]:
        """The directories that hold objects, `{namespace}/ab/cd`; those that vanish are left
        out."""
        for namespace in _folders(self.root):
            if namespace in FOREIGN | {PRIVATE}:
                continue
            for first in _folders(f"{self.root}/{namespace}"):
                above = f"{self.root}/{namespace}/{first}"
                yield from (f"{above}/{second}" for second in _folders(above))

    def _mark(self) -> None:
        path = f"{self.root}/{PRIVATE}/format"
        if not os.path.exists(path):
            draft = f"{self.tmp}/{uuid.uuid4().hex}.format"
            with open(draft, "wb") as file:
                file.write(FORMAT)
            os.rename(draft, path)
        with open(path, "rb") as file:
            found = file.read(len(FORMAT) + 1)
        if found != FORMAT:
            raise StoreError(
                f"expected a file store of format {FORMAT.decode().strip()!r} at {self.root}, got "
                f"{found!r}; was it made by another version?"
            )


@define(eq=False)
class Workspace:
    """This store's own folder for unfinished objects, held by a lock: a folder whose lock is free
    belongs to nobody, and whoever cleans deletes it."""

    directory: Directory
    _name: str = field(init=False, factory=lambda: uuid.uuid4().hex)
    _lock: int = field(init=False, default=-1)
    _renewing: threading.Lock = field(init=False, factory=threading.Lock)

    def renew(self) -> None:
        """Make it again if it is gone: an operator may empty the directory, which another engine
        then makes anew."""
        with self._renewing:
            if self._lock < 0 or not _is_same(self._lock, f"{self._path}.lock"):
                self.close()
                self.open()

    def open(self) -> None:
        """Make the folder."""
        path = self._path
        while True:
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # A cleaner may have deleted the file between the two calls.
            if _is_same(self._lock, f"{path}.lock"):
                break
            os.close(self._lock)
        try:
            os.makedirs(path, exist_ok=True)
        except OSError:
            self.close()
            raise

    def draft(self) -> str:
        """A new name in it."""
        return f"{self._path}/{uuid.uuid4().hex}"

    def close(self) -> None:
        """Delete it."""
        if self._lock >= 0:
            shutil.rmtree(self._path, ignore_errors=True)
            remove_file(f"{self._path}.lock")
            os.close(self._lock)
            self._lock = -1

    @property
    def _path(self) -> str:
        return f"{self.directory.tmp}/{self._name}"


@define(eq=False)
class Tally:
    """How many bytes the objects take, as all processes that share the directory count them."""

    path: str
    _lock: threading.Lock = field(init=False, factory=threading.Lock)

    def add(self, size: int) -> int:
        """Add to it; the new value, never below 0."""
        with self._lock, locked(self.path) as fd:
            return _change(fd, size)

    def claim(self, sizes: Sequence[int], *, limit: int) -> tuple[int, int]:
        """Add the sizes as long as they fit under a limit; how many did, and the new value."""
        with self._lock, locked(self.path) as fd:
            total = _change(fd, 0)
            sums = [total + each for each in accumulate(sizes)]
            count = sum(each <= limit for each in sums)
            taken = sums[count - 1] - total if count else 0
            return count, _change(fd, taken)


@contextmanager
def locked(path: str, *, wait: bool = True) -> Iterator[int | None]:
    """Hold a file's lock among processes; None where `wait` is false and another holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield fd if _take(fd, wait=wait) else None
    finally:
        os.close(fd)


def _change(fd: int | None, size: int) -> int:
    assert fd is not None
    total = max(0, int.from_bytes(os.pread(fd, 8, 0), "little") + size)
    if size:
        os.pwrite(fd, total.to_bytes(8, "little"), 0)
    return total


def _take(fd: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_file(path: str) -> bool:
    """Delete a file; whether it was there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def space_of(size: int) -> int:
    """What a file of this size takes on a disk."""
    return -(-size // BLOCK) * BLOCK


def sweep_drafts(directory: Directory) -> None:
    """Delete the folders of processes that are gone."""
    for name in names_in(directory.tmp):
        path = f"{directory.tmp}/{name}"
        if not name.endswith(".lock"):
            continue
        with locked(path, wait=False) as fd:
            if fd is not None and _is_same(fd, path):
                shutil.rmtree(path.removesuffix(".lock"), ignore_errors=True)
                remove_file(path)


def _is_same(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def names_in(path: str) -> list[str]:
    """What is in a directory; nothing where it is gone or is none."""
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _folders(path: str) -> list[str]:
    """The directories in one. A link is none: what it leads to is not the store's to delete."""
    try:
        with os.scandir(path) as entries:
            return [each.name for each in entries if each.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def safe_name(text: str) -> str:
    """A text as a name in a directory or bucket; equal names only for equal texts."""
    if PLAIN.fullmatch(text):
        return text
    return HASHED + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
