# SPDX-License-Identifier: MIT
"""Turning one request's tokens into text as they come.

A token need not end where a character ends. Bytes of an unfinished character wait here
until it is whole; what can never become one turns into the replacement mark, exactly
where decoding everything at once would put it.
"""

from __future__ import annotations

import codecs
from collections.abc import Container, Sequence

from tokenspeed_core.models.stop_strings import StopStrings
from tokenspeed_core.models.token_bytes import TokenBytes


class Detokenizer:
    """The text of one request: joined deltas equal the decoding of the whole sequence.

    `hidden` ids add no text (special tokens, usually). After a stop string has been met
    `matched` names it, and nothing more comes out.
    """

    __slots__ = ("_decoder", "_hidden", "_stops", "_strip_space", "_token_bytes")

    def __init__(
        self, token_bytes: TokenBytes, *, hidden: Container[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self._token_bytes = token_bytes
        self._hidden = hidden
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_space = token_bytes.strips_leading_space
        self._stops = StopStrings(stops)

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.matched

    def push(self, token_ids: Sequence[int]) -> str:
        """Add tokens; return the text that became certain with them, often none."""
        data = b"".join([self._token_bytes.of(i) for i in token_ids if i not in self._hidden])
        if self._strip_space and data:
            data, self._strip_space = data.removeprefix(b" "), False
        return self._stops.push(self._decoder.decode(data))

    def flush(self) -> str:
        """End the text: return what was held back, an unfinished character as its mark."""
        rest = self._stops.push(self._decoder.decode(b"", final=True))
        return rest + self._stops.flush()
