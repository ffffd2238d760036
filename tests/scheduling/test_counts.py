# SPDX-License-Identifier: MIT
"""Long random runs: what the driver counts, returns and repeats."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

FORCED = {"num_pages": 65, "snapshot_pages": 257, "max_retracted": 8, "force_retraction_every": 5}
SETTINGS: dict[str, dict[str, Any]] = {
    "ample": {},
    "tight": {"num_pages": 65},
    "forced retraction": FORCED,
    "retraction": {"num_pages": 65, "snapshot_pages": 65, "max_retracted": 8},
    "host tier": {"num_pages": 65, "host_pages": 65, "snapshot_pages": 33, "max_retracted": 2},
    "unmixed": {"num_pages": 129, "mixed_batches": False},
    "no prefixes": {"num_pages": 65, "prefix_cache": False},
}
LENGTHS, BUDGETS = (3, 16, 40, 100, 300, 600), (1, 2, 8, 30, 100)


def random_rounds(loop: Any, seed: int) -> Iterator[int]:
    """Yield after each of 300 rounds of submissions, aborts and reused ids."""
    chance = random.Random(seed)
    loop.ack_after = chance.choice((1, 2, 3))
    for number in range(300):
        for _ in range(chance.choice((0, 0, 1, 2))):
            name = f"q{chance.randrange(30)}"
            if loop.driver.has_room_for(name):
                declared = chance.choice((None, 0))
                budget = chance.choice(BUDGETS)
                loop.submit(name, chance.choice(LENGTHS), budget=budget, declared=declared)
        for name, request in loop.wanted.items():
            if chance.random() < 0.02 and not request.is_over:
                loop.abort(name)
        loop.round()
        yield number


def native_counts(loop: Any) -> tuple[int, ...]:
    """The wheel's own counts, and the backlog: ids in use that the wheel does not know."""
    native, driver = loop.driver.native, loop.driver
    taken = [name for name in loop.wanted if not driver.has_room_for(name)]
    backlog = sum(native.request_token_size(name) < 0 for name in taken)
    return (
        native.waiting_size() + backlog,
        native.prefilling_size() + native.decoding_size() - num_held(loop),
        native.retracted_size(),
        native.active_lcm_blocks(),
        native.empty_lcm_blocks(),
    )


def num_held(loop: Any) -> int:
    """Aborted requests that a forward in flight still names: the wheel counts them as running."""
    flying = {id(request) for _, requests in loop.in_flight for request in requests}
    over = [one for one in loop.wanted.values() if one.is_aborted and one.is_over]
    return sum(id(one) in flying for one in over)


def own_counts(loop: Any) -> tuple[int, ...]:
    """The same from the driver."""
    sizes = loop.driver.sizes
    running = sizes.prefilling + sizes.decoding
    return (sizes.waiting, running, sizes.retracted, sizes.active_pages, sizes.empty_pages)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("shape", SETTINGS)
def test_counts_equal_the_wheels(rounds: Any, depth: int, shape: str) -> None:
    """After every round the driver's sizes are the wheel's, and at the end every page is free."""
    loop = rounds(depth, **SETTINGS[shape])
    for _ in random_rounds(loop, seed=depth + 10 * list(SETTINGS).index(shape)):
        assert own_counts(loop) == native_counts(loop)
    loop.drain()
    assert loop.driver.can_clear_cache()
    assert own_counts(loop)[:4] == (0, 0, 0, 0)
    assert loop.driver.native.available_lcm_blocks() == loop.driver.sizes.total_pages


def test_prefilling_and_decoding_apart(rounds: Any) -> None:
    """Without aborts also the two running counts are the wheel's."""
    loop = rounds(1, **FORCED)
    for number in range(60):
        loop.submit(f"r{number}", LENGTHS[number % 6], budget=12)
        loop.round()
        sizes, native = loop.driver.sizes, loop.driver.native
        counts = (native.prefilling_size(), native.decoding_size())
        assert (sizes.prefilling, sizes.decoding) == counts


MIRROR = """
import importlib.util, sys
for name in ("conftest", "test_counts"):
    spec = importlib.util.spec_from_file_location(name, sys.argv[1] + "/" + name + ".py")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
import conftest, test_counts
from tokenspeed_core.scheduling.native import NativeScheduler
loop = conftest.Rounds(NativeScheduler(conftest.small_settings(**test_counts.FORCED)), 1)
for _ in test_counts.random_rounds(loop, seed=5):
    plan = loop.plans[-1]
    batch = plan.batch
    moves = [(one.op_id, one.kind.name, one.moves) for one in plan.operations]
    print(moves, {group: pages.tolist() for group, pages in plan.zero.items()})
    print({group: pages.tolist() for group, pages in plan.copy.items()}, loop.driver.sizes)
    if batch is not None:
        table = batch.block_tables["full"].tolist()
        print(batch.request_ids, batch.slots.tolist(), batch.decode_input_ids, table)
"""


def mirrored(hash_seed: str) -> str:
    """What a process with that hash seed plans."""
    here = os.path.dirname(__file__)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", MIRROR, here]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout


def test_mirrored_drivers_plan_alike() -> None:
    """Two processes with different hash seeds and the same calls make the same plans."""
    first = mirrored("1")
    assert first == mirrored("2")
    assert first.count("SNAPSHOT") > 3
