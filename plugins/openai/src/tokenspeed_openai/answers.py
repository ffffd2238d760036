# SPDX-License-Identifier: MIT
"""An answer's text as what it thinks, says and calls."""

from __future__ import annotations

from attrs import frozen

from tokenspeed_openai.reasoning import ThoughtReader
from tokenspeed_openai.responses import Delta
from tokenspeed_openai.tools import CallReader


@frozen(kw_only=True)
class AnswerReader:
    """Reads one answer; calls are looked for behind its thinking."""

    thoughts: ThoughtReader | None
    calls: CallReader | None
    tells_thoughts: bool = True

    def read(self, text: str, *, is_last: bool) -> Delta:
        """What a piece of the text adds."""
        thought = ""
        if self.thoughts is not None:
            thought, text = self.thoughts.push(text, is_last=is_last)
        delta = Delta(reasoning_content=thought or None if self.tells_thoughts else None)
        if self.calls is not None and (self.thoughts is None or self.thoughts.is_over):
            text, calls = self.calls.push(text, is_last=is_last)
            delta.tool_calls = calls or None
        delta.content = text or None
        return delta
