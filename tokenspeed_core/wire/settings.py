# SPDX-License-Identifier: MIT
"""The limits of an engine's side of the wire."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class WireSettings:
    """Times and bounds of a link. All times in seconds.

    `heartbeat_s`: how long an engine with requests says nothing before it sends an empty batch.
    `notice_s`: between two notes that no front end answers. `retry_s`: between two connection
    attempts. `send_limit_s`: how long a front end may leave a message untaken, and `max_queued` how
    many of them, before it counts as gone. `max_unread`: messages the loop has not read, beyond
    which the front end is not read from. `linger_s`: how long the last messages may take to leave.
    """

    heartbeat_s: float = 5.0
    notice_s: float = 30.0
    retry_s: float = 0.1
    send_limit_s: float = 30.0
    max_queued: int = 4096
    max_unread: int = 65_536
    linger_s: float = 0.5
