# SPDX-License-Identifier: MIT
"""What compiles grammars and says which tokens may follow; one is picked by its entry point.

A backend is a class in the entry point group `tokenspeed.grammar.backends`, made once a rank as
`Backend(vocabulary, settings)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from importlib.metadata import entry_points
from typing import Protocol

import numpy as np
import numpy.typing as npt
from attrs import frozen

from tokenspeed_hookspecs import Tokenizer

BACKENDS = "tokenspeed.grammar.backends"
Mask = npt.NDArray[np.int32]


class GrammarError(ValueError):
    """A source that cannot be used; the text is for the client who sent it."""


@frozen
class Vocabulary:
    """The model's tokens: ids from 0 to `size` - 1, of which `end_ids` end a text."""

    tokenizer: Tokenizer
    size: int
    end_ids: tuple[int, ...]

    @property
    def mask_bits(self) -> int:
        """Bits in the mask of one row: a token each, and one for the end where no token ends."""
        return self.size + (not self.end_ids)

    @property
    def mask_words(self) -> int:
        """Words of 32 bits in the mask of one row."""
        return (self.mask_bits + 31) // 32


class Whitespace(Enum):
    """What may stand between the tokens of JSON.

    A model that may write any amount of it sometimes writes nothing else, up to its budget.
    """

    NONE = "none"
    SOME = "some"  # a space, a new line and its indentation
    ANY = "any"


@frozen
class BackendSettings:
    """`threads` share the masks of a batch."""

    whitespace: Whitespace = Whitespace.SOME
    threads: int = 1


class Matcher(Protocol):
    """One request's place in its grammar."""

    @property
    def is_complete(self) -> bool:
        """Whether the text follows the grammar and nothing may be added to it."""
        ...

    @property
    def can_end(self) -> bool:
        """Whether the text follows the grammar as it is."""
        ...

    @property
    def error(self) -> str | None:
        """Why it cannot be used any more, or None."""
        ...

    def accept(self, token: int) -> bool:
        """Go on by a token; False, with an `error`, if the grammar does not allow it."""
        ...


class CompiledGrammar(Protocol):
    """A grammar that many requests share."""

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        ...

    def matcher(self) -> Matcher:
        """A matcher at the start; takes microseconds."""
        ...


class Backend(Protocol):
    """Compiles on any thread; fills on the data plane's."""

    def compile(self, kind: str, source: str) -> CompiledGrammar:
        """Compile a source of one of the kinds of `GrammarKey`. GrammarError: it is no good."""
        ...

    def fill(self, matchers: Sequence[tuple[Matcher, int]], mask: Mask) -> None:
        """Write which tokens may follow into rows of a mask int32 [rows, words].

        Bit t of a row (the lowest of its word first) is set if token t may follow; end tokens where
        the text can end. A matcher that fails has an `error` then, and its row means nothing.
        """
        ...


def load_backend(name: str) -> Callable[[Vocabulary, BackendSettings], Backend]:
    """The backend's class; ValueError names the installed ones, or says why it does not load."""
    points = {point.name: point for point in entry_points(group=BACKENDS)}
    if name not in points:
        known = ", ".join(sorted(points)) or "none"
        raise ValueError(f"there is no grammar backend {name!r}; installed are: {known}")
    try:
        found: Callable[[Vocabulary, BackendSettings], Backend] = points[name].load()
    except ImportError as error:
        raise ValueError(f"grammar backend {name!r} cannot be imported: {error}") from error
    return found
