# SPDX-License-Identifier: MIT
"""Names differ whenever bytes could, and only then."""

from __future__ import annotations

import re

import pytest
from attrs import evolve

from tokenspeed_hookspecs import StorageKey
from tokenspeed_l3.keys import Facts, Part

KEY = StorageKey("full", "ab" * 32, 0)
FACTS = Facts(
    deployment="prod",
    page_size=64,
    stages=[{"checkpoint": "c0ffee", "dtype": "bfloat16", "ranks": 2, "groups": ["full"]}],
)


def test_a_namespace_begins_with_what_people_know() -> None:
    """Deployment and version are readable, and the whole is safe as a path or a key."""
    name = FACTS.namespace("v7")
    assert re.fullmatch(r"prod-v7-[0-9a-f]{64}", name)
    assert re.fullmatch(r"[a-z0-9._-]+", FACTS.namespace("Step 4/ü"))


@pytest.mark.parametrize(
    "other",
    [
        evolve(FACTS, deployment="test"),
        evolve(FACTS, page_size=32),
        evolve(FACTS, stages=[{**FACTS.stages[0], "checkpoint": "decaf"}]),
        evolve(FACTS, stages=[{**FACTS.stages[0], "dtype": "float32"}]),
        evolve(FACTS, stages=[{**FACTS.stages[0], "draft": "small"}]),
        evolve(FACTS, stages=[*FACTS.stages, *FACTS.stages]),
    ],
)
def test_each_fact_makes_another_namespace(other: Facts) -> None:
    """Another deployment, page, checkpoint, number format, draft or pipeline."""
    assert other.namespace("v1") != FACTS.namespace("v1")


def test_versions_that_read_alike_are_still_apart() -> None:
    """What the readable start drops is in the digest."""
    versions = ["v1", "V1", "v 1", "v/1", "", "v" * 30, "v" * 31]
    assert len({FACTS.namespace(each) for each in versions}) == len(versions)


def test_the_order_of_facts_does_not_matter() -> None:
    """Equal identities are the same namespace however they were made."""
    turned = {key: FACTS.stages[0][key] for key in sorted(FACTS.stages[0], reverse=True)}
    assert evolve(FACTS, stages=[turned]).namespace("") == FACTS.namespace("")


def test_an_object_is_named_by_page_and_place() -> None:
    """Shard and stage are in the name, so that another rank's bytes are never read."""
    part = Part("full", 128, shard_count=2, shard=1, stage=0, num_stages=3)
    assert part.name("ns", KEY) == f"ns/{'ab' * 32}_full_0_s1of2_p0of3"
    others = [evolve(part, shard=0), evolve(part, shard_count=4), evolve(part, stage=2)]
    names = {each.name("ns", KEY) for each in [part, *others, evolve(part, num_stages=4)]}
    assert len(names) == 5
    assert part.name("ns", evolve(KEY, page_offset=1)) not in names


def test_groups_that_read_alike_are_still_apart() -> None:
    """One group's page must never be found in the place of another's."""
    groups = ["full", "Full", "full ", "window 4", "window/4", "g" * 40, "g" * 41]
    names = {Part(group, 128).name("ns", evolve(KEY, group=group)) for group in groups}
    assert len(names) == len(groups)
    assert all(re.fullmatch(r"[a-z0-9._/-]+", name) for name in names)
