# SPDX-License-Identifier: MIT
"""How stores that keep bytes elsewhere frame an object: a head, then the page.

    magic and version (8) | page length (8) | CRC-32C (4) | key length (4) | key | page

The CRC is over everything else. With the whole key in the head, an object under another's name is
found out, and one of another model or version of the weights too, since their keys differ. The
same key and page always make the same bytes.

`fastcrc` computes the CRC at more than 20 GB/s and without the interpreter's lock; `zlib.crc32`
of Debian's Python does 1.4 GB/s, slower than reading the page.
"""

from __future__ import annotations

import struct

from fastcrc import crc32

MAGIC = b"tspL3\r\n\x01"
FIXED = struct.Struct("<8sQII")
LONGEST_HEAD = FIXED.size + 4096  # of those that a listing reads


def head_size(key: str) -> int:
    """The length of a key's head."""
    return FIXED.size + len(key.encode())


class HeadInParts:
    """The head of a page that comes in parts: each is summed while the processor still has it."""

    def __init__(self, key: str, size: int) -> None:
        self._name, self._size = key.encode(), size
        self._crc = crc32.iscsi(FIXED.pack(MAGIC, size, 0, len(self._name)) + self._name)

    def add(self, part: memoryview | bytes) -> None:
        """Take the page's next bytes."""
        self._crc = crc32.iscsi(part, self._crc)

    def head(self) -> bytes:
        """The head, once all of the page was taken."""
        return FIXED.pack(MAGIC, self._size, self._crc, len(self._name)) + self._name


def head_of(key: str, page: memoryview | bytes) -> bytes:
    """The head that goes before this page. A page read is whole if its head is this."""
    whole = HeadInParts(key, len(page))
    whole.add(page)
    return whole.head()


def key_of(start: bytes) -> str | None:
    """The key in the first bytes of an object, None where they are no head of this version."""
    if len(start) < FIXED.size:
        return None
    magic, _, _, length = FIXED.unpack_from(start)
    name = start[FIXED.size : FIXED.size + length]
    if magic != MAGIC or len(name) != length:
        return None
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


def problem_of(key: str, data: bytes) -> str | None:
    """What is wrong with an object's bytes, None if they are whole."""
    found = key_of(data)
    if found is None:
        return "its head is damaged or of another version"
    if found != key:
        return f"it is the object of another key, {found}"
    _, size, _, _ = FIXED.unpack_from(data)
    page = memoryview(data)[head_size(key) :]
    if len(page) != size:
        return f"expected {size} bytes, got {len(page)}"
    return None if data.startswith(head_of(key, page)) else "its checksum does not fit its bytes"
