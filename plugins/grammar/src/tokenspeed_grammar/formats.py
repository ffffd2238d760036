# SPDX-License-Identifier: MIT
"""Dates and times as patterns: with the days each month has, and leap seconds only at the ends of
UTC's days. A library's own tend to let through the 29th of any February."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_LONG = r"(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_SHORT = r"(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_FEBRUARY = r"02-(?:0[1-9]|1[0-9]|2[0-8])"
_IN_FOUR = r"[0-9]{2}(?:0[48]|[2468][048]|[13579][26])"
_IN_FOUR_HUNDRED = r"(?:[02468][048]|[13579][26])00"
DATE = (
    rf"(?:[0-9]{{4}}-(?:{_LONG}|{_SHORT}|{_FEBRUARY})"
    rf"|(?:{_IN_FOUR}|{_IN_FOUR_HUNDRED})-02-29)"
)
_HOUR_MINUTE = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_FRACTION = r"(?:\.[0-9]+)?"
DAY_MINUTES = 24 * 60
OFFSET_STEP = 15  # minutes; the offsets in use are multiples


def _leap_seconds() -> Iterator[str]:
    """Where UTC says 23:59:60, for every offset."""
    yield rf"23:59:60{_FRACTION}[Zz]"
    for offset in range(0, DAY_MINUTES, OFFSET_STEP):
        for sign, away in (("+", offset), ("-", -offset)):
            hour, minute = divmod((DAY_MINUTES - 1 + away) % DAY_MINUTES, 60)
            behind = rf"[{sign}]{offset // 60:02}:{offset % 60:02}"
            yield rf"{hour:02}:{minute:02}:60{_FRACTION}{behind}"


TIME = (
    rf"(?:{_HOUR_MINUTE}:[0-5][0-9]{_FRACTION}(?:[Zz]|[+-]{_HOUR_MINUTE})"
    rf"|{'|'.join(_leap_seconds())})"
)
PATTERNS: Mapping[str, str] = {
    "date": f"^{DATE}$",
    "time": f"^{TIME}$",
    "date-time": f"^{DATE}[Tt]{TIME}$",
}
