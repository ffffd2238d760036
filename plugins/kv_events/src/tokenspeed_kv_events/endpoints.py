# SPDX-License-Identifier: MIT
"""The address of one of several engines, made from the address of the first."""

from __future__ import annotations

TRANSPORTS = ("tcp", "ipc", "inproc")


def endpoint_problem(endpoint: str) -> str | None:
    """Say what is wrong with an address, if anything."""
    transport, mark, place = endpoint.partition("://")
    if not mark or transport not in TRANSPORTS or not place:
        return f"expected tcp://HOST:PORT, ipc://PATH or inproc://NAME, got {endpoint!r}"
    port = endpoint.rpartition(":")[2]
    if transport == "tcp" and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return f"expected a port from 1 to 65535 at the end of {endpoint!r}"
    return None


def rank_endpoint(endpoint: str, dp_rank: int) -> str:
    """The address of a data-parallel rank: the next ports, or a name with the rank behind it."""
    if not dp_rank:
        return endpoint
    if endpoint.startswith("tcp://"):
        host, _, port = endpoint.rpartition(":")
        return f"{host}:{int(port) + dp_rank}"
    return f"{endpoint}_dp{dp_rank}"
