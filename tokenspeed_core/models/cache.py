# SPDX-License-Identifier: MIT
"""The folder where downloaded and converted models are kept.

An entry is either whole or not there: it is built in a folder beside its place and
renamed into it. A lock keeps two processes from building the same entry; what a killed
process left behind is cleared by the next one that builds it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.models.progress import Progress

# Part of every entry's name: raise it when what is written into an entry changes.
LAYOUT = 1


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Return $TOKENSPEED_CACHE, or the platform's place for a user's caches."""
    if chosen := environment.get("TOKENSPEED_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tokenspeed"
    if sys.platform == "win32" and (local := environment.get("LOCALAPPDATA")):
        return Path(local) / "tokenspeed" / "cache"
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tokenspeed"


def build_once(entry: Path, build: Callable[[Path], None], *, progress: Progress) -> Path:
    """Return the entry, building it first if it is not there.

    `build` fills the empty folder it is given. If it fails, or is interrupted, nothing
    of it stays. A ModelError names the place when it cannot be written.
    """
    if entry.exists():
        return entry
    try:
        locks = entry.parent.parent / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        entry.parent.mkdir(parents=True, exist_ok=True)
        with _held(FileLock(locks / f"{entry.name}.lock"), entry.name, progress=progress):
            if not entry.exists():
                _build(entry, build)
    except OSError as error:
        raise ModelError(
            f"cannot write {error.filename or entry} in the model cache: {error.strerror}; "
            f"set TOKENSPEED_CACHE to a folder with room"
        ) from error
    return entry


def _held(lock: FileLock, name: str, *, progress: Progress) -> FileLock:
    """Take the lock, telling so if another process has it."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.start(f"Waiting for another process to build {name}")
        lock.acquire()
        progress.finish()
    return lock


def _build(entry: Path, build: Callable[[Path], None]) -> None:
    unfinished = entry.with_name(f".{entry.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        build(unfinished)
        unfinished.rename(entry)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
