# SPDX-License-Identifier: MIT
"""The same traffic gives the same rounds, whatever the interpreter's hash seed.

Replica ranks plan without asking each other; one unordered set in a decision would part them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tokenspeed_core.testing import EngineFixture, EngineSetup, Tiers, request

TRACE = """
from tests.simulation.test_determinism import trace
print(trace())
"""


def trace() -> str:
    """Run traffic with cancels and retractions; a digest of all batches, outputs and releases."""
    setup = EngineSetup(
        tiers=Tiers.HOST_AND_FORCED_RETRACTION, scheduler={"num_pages": 40, "host_pages": 60}
    )
    engine = EngineFixture(setup)
    for number in range(40):
        engine.put(request(f"r{number}", 10 + 7 * (number % 9), budget=1 + number % 13))
        engine.rounds(1 + number % 2)
        if number % 5 == 0:
            engine.abort(*(f"r{at}" for at in range(number)))
    engine.to_idle()
    digest = hashlib.sha256()
    for batch in engine.plane.batches:
        tables = {group: table.tolist() for group, table in batch.block_tables.items()}
        digest.update(repr((batch.request_ids, batch.slots.tolist(), tables)).encode())
    streams = {name: engine.received[name].tokens for name in engine.received.ids()}
    digest.update(repr((streams, engine.plane.released)).encode())
    return f"{len(engine.plane.batches)} forwards, {digest.hexdigest()}"


def _traced(hash_seed: int) -> str:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
    }
    found = subprocess.run(
        [sys.executable, "-c", TRACE], env=environment, capture_output=True, text=True, check=True
    )
    return found.stdout


def test_rounds_do_not_depend_on_the_hash_seed() -> None:
    """Two processes with different hash seeds run the same batches and send the same chunks."""
    assert _traced(1) == _traced(2) != ""
