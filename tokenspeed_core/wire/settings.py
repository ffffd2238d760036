# SPDX-License-Identifier: MIT
"""The limits of an engine's side of the wire."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class WireSettings:
    """Times in seconds, and bounds, of an engine's link to its front end."""

    retry_s: float = 0.1
    """Between two attempts to connect."""
    notice_s: float = 30.0
    """Between two notes in the log that no front end answers."""
    init_limit_s: float = 600.0
    """How long HELLO may go unanswered before it is said on a new connection. A gateway that waits
    for further engines gives up after as long."""
    heartbeat_s: float = 5.0
    """How long an engine with requests says nothing before it sends an empty batch."""
    send_limit_s: float = 30.0
    """How long a front end may leave a message untaken before it counts as gone."""
    max_queued: int = 4096
    """How many messages may wait for it before it counts as gone."""
    max_unread: int = 65_536
    """How many of its messages the loop may leave unread before it is not read from."""
    linger_s: float = 0.5
    """How long the last messages may take to leave."""
