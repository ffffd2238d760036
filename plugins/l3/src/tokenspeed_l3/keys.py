# SPDX-License-Identifier: MIT
"""What objects are called.

A name says everything an object's bytes depend on, so whoever finds one may use it. The tokens are
in the content hash; all else is in the namespace: a start that people can read, then a SHA-256 of
the facts as canonical JSON. A flush or an update of the weights concerns a whole namespace.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from tokenspeed_hookspecs import StorageKey

FORMAT = 1  # of names and contents; another one is another namespace
READABLE = 32  # letters of each readable part
# What objects of any engine are called; nothing else is.
OBJECT = re.compile(r"[a-z0-9._-]+/[0-9a-f]{64}_[a-z0-9._-]+_\d+_s\d+of\d+_p\d+of\d+")


@frozen(kw_only=True)
class Facts:
    """What all objects of an engine have in common; `stages` says for each pipeline stage, in
    order, what its pages are made from and how they lie."""

    deployment: str
    page_size: int
    stages: Sequence[Mapping[str, Any]]

    def namespace(self, weight_version: str, *, is_update: bool = False) -> str:
        """The namespace of these weights, in `[a-z0-9._-]`. Those of an update are not the
        checkpoint's, whatever they are called: they may be given the name it has by default."""
        facts = {
            "format": FORMAT,
            "deployment": self.deployment,
            "page_size": self.page_size,
            "stages": [dict(stage) for stage in self.stages],
            "weight_version": weight_version,
            **({"is_update": True} if is_update else {}),
        }
        digest = hashlib.sha256(canonical(facts).encode()).hexdigest()
        words = (self.deployment, weight_version)
        return "-".join([*filter(None, map(_readable, words)), digest])


@frozen
class Part:
    """What a rank holds of a group's pages: shard `shard` of `shard_count`, of stage `stage` of
    `num_stages`. Of ranks with the same part one, the owner, puts it."""

    group: str
    page_bytes: int
    shard_count: int = 1
    shard: int = 0
    stage: int = 0
    num_stages: int = 1
    is_owner: bool = True

    def name(self, namespace: str, key: StorageKey) -> str:
        """The whole name of a page's object."""
        place = f"s{self.shard}of{self.shard_count}_p{self.stage}of{self.num_stages}"
        return f"{namespace}/{key.content_hash}_{_distinct(self.group)}_{key.page_offset}_{place}"


def canonical(facts: object) -> str:
    """JSON that is the same text for equal facts. TypeError: a value that JSON does not have."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _distinct(text: str) -> str:
    """A text as a part of a name, which no other text is."""
    readable = _readable(text)
    if readable == text:
        return text
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _readable(text: str) -> str:
    return re.sub(r"[^a-z0-9._]+", "_", text.lower()).strip("._")[:READABLE]
