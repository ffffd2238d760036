# SPDX-License-Identifier: MIT
"""The pause state of a rank, and the replies that leave at the end of its round."""

from __future__ import annotations

from tokenspeed_hookspecs import ControlReply


class Controls:
    """Admissions blocked: new requests are withheld from the scheduler. Forwards blocked (frozen):
    rounds plan no forward, and everything else goes on."""

    def __init__(self) -> None:
        self.admissions_blocked = False
        self.forwards_blocked = False
        self._replies: list[ControlReply] = []

    def freeze(self) -> None:
        """Block admissions and forwards; nothing is cancelled."""
        self.admissions_blocked = True
        self.forwards_blocked = True

    def thaw(self) -> None:
        """Run again; what was withheld reaches the scheduler in the same round."""
        self.admissions_blocked = False
        self.forwards_blocked = False

    def reply(self, reply: ControlReply) -> None:
        """Queue a reply; it leaves after the round's outputs, in queueing order."""
        self._replies.append(reply)

    def take_replies(self) -> list[ControlReply]:
        """The queued replies, which are the caller's from now on."""
        replies, self._replies = self._replies, []
        return replies
