# SPDX-License-Identifier: MIT
"""Where a gateway takes the engine that it knows by a worker URL."""

from __future__ import annotations

import os

from tokenspeed_core.errors import ConfigError

IPC = "ipc://"
FNV_BASIS, FNV_PRIME, FNV_MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
FIRST_PORT, NUM_PORTS = 20_000, 10_000


def handshake_address(worker_url: str) -> str:
    """The address of the handshake for a worker `ipc://PATH`.

    The port follows from the path: 64-bit FNV-1a of its bytes, mapped to 20000-29999.
    """
    path = worker_url.removeprefix(IPC)
    if not worker_url.startswith(IPC) or not path:
        raise ConfigError([f"--gateway: expected the worker's ipc://PATH, got {worker_url!r}"])
    digest = FNV_BASIS
    for byte in os.fsencode(path):
        digest = (digest ^ byte) * FNV_PRIME & FNV_MASK
    return f"tcp://127.0.0.1:{FIRST_PORT + digest % NUM_PORTS}"
