# SPDX-License-Identifier: MIT
"""What a rank holds of each page, found out at the start with the other ranks of the replica.

Ranks of one stage may hold equal bytes, where a group has fewer parts than there are ranks. Of
those the first puts; all of them ask and fetch, each into its own memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from tokenspeed_hookspecs import HostPages, Ranks
from tokenspeed_l3.errors import L3Error
from tokenspeed_l3.keys import Facts, Part, canonical


@frozen
class Seat:
    """What this rank's objects are called, and what all objects of the engine have in common."""

    facts: Facts
    parts: Mapping[str, Part]


def agree_on_seat(ranks: Ranks, host: HostPages | None, *, deployment: str, page_size: int) -> Seat:
    """Tell the replica what this rank holds; L3Error says in what ranks differ that must not.

    Without host pages, in a replay, what was told then is taken, and no page is named.
    """
    told = [json.loads(each) for each in ranks.replica.gather(_told(ranks, host).encode())]
    _refuse_differences([each["identity"] for each in told])
    stages = sorted({each["stage"] for each in told})
    facts = Facts(
        deployment=deployment,
        page_size=page_size,
        stages=[_stage(told, stage) for stage in stages],
    )
    return Seat(facts, _parts(told, ranks.replica.index, num_stages=len(stages)))


def _told(ranks: Ranks, host: HostPages | None) -> str:
    stage = 0 if ranks.pp is None else ranks.pp.index
    if host is None:
        return canonical({"stage": stage, "identity": {}, "groups": []})
    groups = [
        {
            "group": each.group,
            "page_bytes": each.page_bytes,
            "fields": list(each.fields),
            "shard_count": each.shard_count,
            "shard": each.shard,
        }
        for each in host.groups
    ]
    return canonical({"stage": stage, "identity": dict(host.identity()), "groups": groups})


def _stage(told: Sequence[Mapping[str, Any]], stage: int) -> Mapping[str, Any]:
    """A stage's facts: the model's, and how its pages lie, which is the same on all its ranks."""
    members = [each for each in told if each["stage"] == stage]
    layouts = [[_without(group, "shard") for group in each["groups"]] for each in members]
    for member, layout in enumerate(layouts):
        if layout != layouts[0]:
            raise L3Error(
                f"ranks of pipeline stage {stage} lay out their host pages differently: "
                f"{layouts[0]} on the first, {layout} on number {member}; they must run the same "
                "version on the same kind of device"
            )
    return {"identity": members[0]["identity"], "groups": layouts[0]}


def _parts(told: Sequence[Mapping[str, Any]], index: int, *, num_stages: int) -> Mapping[str, Part]:
    mine = told[index]
    return {
        group["group"]: Part(
            group=group["group"],
            page_bytes=group["page_bytes"],
            shard_count=group["shard_count"],
            shard=group["shard"],
            stage=mine["stage"],
            num_stages=num_stages,
            is_owner=not any(_holds(each, mine["stage"], group=group) for each in told[:index]),
        )
        for group in mine["groups"]
    }


def _holds(member: Mapping[str, Any], stage: int, *, group: Mapping[str, Any]) -> bool:
    return member["stage"] == stage and any(
        (each["group"], each["shard"]) == (group["group"], group["shard"])
        for each in member["groups"]
    )


def _refuse_differences(identities: Sequence[Mapping[str, Any]]) -> None:
    for member, identity in enumerate(identities):
        for place, here, there in _differences("", identities[0], there=identity):
            raise L3Error(
                "ranks of one replica would store pages that do not go together: "
                f"{place.lstrip('.')} is {here!r} on member 0 and {there!r} on member {member}; "
                "give all of them the same checkpoint and settings"
            )


def _differences(place: str, here: Any, *, there: Any) -> Iterator[tuple[str, Any, Any]]:
    """The innermost places where two identities differ."""
    if isinstance(here, dict) and isinstance(there, dict):
        for key in sorted({*here, *there}):
            yield from _differences(f"{place}.{key}", here.get(key), there=there.get(key))
    elif here != there:
        yield place, here, there


def _without(group: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != key}
