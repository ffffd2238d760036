# SPDX-License-Identifier: MIT
"""Which ranks could not carry out an operation, and why."""

from __future__ import annotations

import json

from tokenspeed_hookspecs import ControlReply, Ranks


def reason_of_all(ranks: Ranks, reply: ControlReply) -> str:
    """Why an operation that failed somewhere failed, from every rank's own reply; an exchange, and
    the same text on all of them. What every rank says is said once."""
    group = ranks.dp or ranks.replica
    if group.size == 1:
        return reply.message
    mine = (ranks.rank, None if reply.success else reply.message)
    told: dict[str, list[str]] = {}
    for part in group.gather(json.dumps(mine).encode()):
        rank, message = json.loads(part)
        if message is not None:
            told.setdefault(message, []).append(str(rank))
    if [len(failed) for failed in told.values()] == [group.size]:
        return next(iter(told))
    failures = [f"on rank {', '.join(failed)}: {message}" for message, failed in told.items()]
    return f"{reply.name} failed " + "; ".join(failures)
