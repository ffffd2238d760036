# SPDX-License-Identifier: MIT
"""JSON Schema's patterns, which are JavaScript's, for the regular expressions of Rust.

The two read some things differently without a word: what a space is, what a dot leaves out, and
brackets, `&&`, `~~` and `--` inside a class.
"""

from __future__ import annotations

import re

from attrs import define, field

from tokenspeed_grammar.backend import GrammarError

SPACES = "\\t-\\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
LINE_ENDS = "\\n\\r\u2028\u2029"
KNOWN_LETTERS = frozenset("bBcdDfknpPrsStuvwWx")
SETS = frozenset("dDpPsSwW")
# Most patterns mean the same in both, and a look at them costs little.
SAME = re.compile(
    r"(?:[^\\.\[]|\\[dDwWnrt/.+*?()|^$\[\]{}\\-]|\[\^?(?:[A-Za-z0-9_ ](?:-[A-Za-z0-9_ ])?)+\])*"
)


def javascript_pattern(pattern: str) -> str:
    """The pattern as Rust writes it; GrammarError if JavaScript does not know one of its parts."""
    return pattern if SAME.fullmatch(pattern) else _Reader(pattern).read()


@define(eq=False)
class _Reader:
    pattern: str
    at: int = 0
    written: list[str] = field(factory=list)

    def read(self) -> str:
        while (char := self._next()) is not None:
            if char == "\\":
                self._escape()
            elif char == "[":
                self._class()
            else:
                self.written.append(f"[^{LINE_ENDS}]" if char == "." else char)
        return "".join(self.written)

    def _next(self) -> str | None:
        if self.at == len(self.pattern):
            return None
        self.at += 1
        return self.pattern[self.at - 1]

    def _is_next(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def _escape(self) -> bool:
        """Write what follows a backslash; whether it stands for more than one character."""
        char = self._next()
        if char is None:
            raise GrammarError(f"the pattern {_shown(self.pattern)} ends with a backslash")
        if char.isascii() and char.isalpha() and char not in KNOWN_LETTERS:
            raise GrammarError(f"unknown escape \\{char} in the pattern {_shown(self.pattern)}")
        spaces = {"s": f"[{SPACES}]", "S": f"[^{SPACES}]", "<": "<", ">": ">"}
        self.written.append(spaces.get(char, f"\\{char}"))
        return char in SETS

    def _class(self) -> None:
        if self._is_next("]"):
            raise GrammarError(f"nothing matches the [] in the pattern {_shown(self.pattern)}")
        if self._is_next("^]"):
            self.at += 2
            self.written.append("(?s:.)")
            return
        self.written.append("[")
        if self._is_next("^"):
            self.at += 1
            self.written.append("^")
        # Whether a hyphen here makes a range, and whether the next character ends one.
        can_begin = is_end = False
        while (char := self._next()) != "]":
            if char is None:
                raise GrammarError(f"unclosed class in the pattern {_shown(self.pattern)}")
            if char == "-" and can_begin and not self._is_next("]"):
                self.written.append("-")
                can_begin, is_end = False, True
                continue
            is_set = False
            if char == "\\":
                is_set = self._escape()
            else:
                self.written.append(f"\\{char}" if char in "-[&~" else char)
            can_begin, is_end = not (is_set or is_end), False
        self.written.append("]")


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 80 else pattern[:77] + "...")
