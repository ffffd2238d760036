# SPDX-License-Identifier: MIT
"""Where a client and its engines meet: three addresses of this host, in a folder nobody else reads.

A socket file's path has room for about a hundred bytes, so the folder is made where paths are
short, whatever the temporary directory is set to.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from attrs import field, frozen

from tokenspeed_core.keyed_address import ListenKey

MAX_IPC_PATH = 100  # the kernel's limit is 108, with a terminator
SOCKET_NAMES = ("handshake", "input", "output")
SHORT_FOLDERS = ("/tmp", "/var/tmp")  # after the user's own


def _check(name: str, address: str, *, has_key: bool) -> None:
    scheme, _, place = address.partition("://")
    if scheme == "ipc" and place:
        _check_path(place)
    elif scheme != "tcp" or not (has_key or _is_loopback(place.rpartition(":")[0])):
        raise ValueError(
            f"{name}: expected ipc://PATH, or tcp:// on a loopback address such as "
            f"tcp://127.0.0.1:*, got {address!r}; without a key the sockets have no authentication"
        )


def _check_path(path: str) -> None:
    size = len(os.fsencode(path))
    if size > MAX_IPC_PATH:
        raise ValueError(
            f"expected a socket path of at most {MAX_IPC_PATH} bytes, got {size}: {path!r}; choose "
            "a folder nearer to the root"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@frozen
class Addresses:
    """The three addresses the client binds: `ipc://` paths, or `tcp://` on a loopback address or,
    with a `key`, anywhere.

    A tcp port of `*` or 0 is chosen when the client binds; then the addresses carry the key, for
    the engines alone.
    """

    handshake: str
    input: str
    output: str
    key: ListenKey | None = field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        for name in SOCKET_NAMES:
            _check(name, getattr(self, name), has_key=self.key is not None)

    @classmethod
    def at(cls, host: str) -> Addresses:
        """Free ports of a host, for engines on any host that are told the addresses."""
        return cls(*[f"tcp://{host}:*"] * len(SOCKET_NAMES), key=ListenKey.new())

    @classmethod
    def under(cls, folder: str | os.PathLike[str]) -> Addresses:
        """Socket files in a folder."""
        return cls(*(f"ipc://{Path(folder) / name}" for name in SOCKET_NAMES))


@contextmanager
def private_addresses(prefix: str = "tokenspeed-") -> Iterator[Addresses]:
    """Addresses in a new folder of mode 0700, which is removed at the end."""
    folder = private_folder(prefix)
    try:
        yield Addresses.under(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def private_folder(prefix: str = "tokenspeed-") -> Path:
    """A new folder of mode 0700 with a path short enough for socket files; the caller's to remove.

    OSError if no folder with a short path can be written to.
    """
    tried = []
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), *SHORT_FOLDERS):
        if not parent or len(os.fsencode(parent)) + len(prefix) + 20 > MAX_IPC_PATH:
            continue
        try:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        except OSError as error:
            tried.append(str(error))
    raise OSError(f"found no folder for the engines' sockets: {'; '.join(tried)}")
