# SPDX-License-Identifier: MIT
"""How a model stretches its rotary positions, as one small record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum

from attrs import frozen

from tokenspeed_core.models.fields import FieldReader


class RopeKind(Enum):
    """The known ways of stretching rotary positions."""

    NONE = "default"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    LLAMA3 = "llama3"
    YARN = "yarn"


@frozen(kw_only=True)
class RopeScaling:
    """Parameters of one way of stretching; those another way needs keep their defaults.

    `attention_factor` multiplies cosine and sine. It is final: yarn's `mscale` fields
    are already worked in. `original_positions` is the length the model was trained on.
    """

    kind: RopeKind = RopeKind.NONE
    factor: float = 1.0
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


@frozen(kw_only=True)
class Rope:
    """The base of the rotary frequencies and their stretching."""

    theta: float
    scaling: RopeScaling


def read_rope(reader: FieldReader, where: str, *, positions: int) -> Rope:
    """Read `rope_parameters` (new) or `rope_theta` and `rope_scaling` (old) of a config.json."""
    new, old = reader.raw("rope_parameters"), reader.raw("rope_scaling")
    if new is not None and old is not None and new != old:
        reader.problem("rope_scaling", old, expected="only one of rope_parameters and rope_scaling")
    theta = reader.real("rope_theta", default=10000.0)
    found = new if new is not None else old
    if found is None:
        return Rope(theta=theta, scaling=RopeScaling())
    if not isinstance(found, Mapping):
        reader.problem("rope_parameters", found, expected="an object")
        return Rope(theta=theta, scaling=RopeScaling())
    inner = FieldReader(found, where=f"{where}, rope parameters")
    rope = Rope(
        theta=inner.real("rope_theta", default=theta), scaling=_read_scaling(inner, positions)
    )
    inner.expect("partial_rotary_factor", 1)
    for name, value in inner.untaken():
        inner.problem(name, value, expected="no such field for this rope type")
    inner.finish()
    return rope


def _read_scaling(reader: FieldReader, positions: int) -> RopeScaling:
    kind = _read_kind(reader)
    if kind is RopeKind.NONE:
        reader.ignore(["factor"])
        return RopeScaling()
    factor = reader.real("factor")
    if kind is RopeKind.LINEAR:
        return RopeScaling(kind=kind, factor=factor)
    if kind is RopeKind.LLAMA3:
        return RopeScaling(
            kind=kind,
            factor=factor,
            original_positions=reader.positive("original_max_position_embeddings"),
            low_freq_factor=reader.real("low_freq_factor"),
            high_freq_factor=reader.real("high_freq_factor"),
        )
    original = reader.positive("original_max_position_embeddings", default=positions)
    if kind is RopeKind.DYNAMIC:
        return RopeScaling(kind=kind, factor=factor, original_positions=original)
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_positions=original,
        beta_fast=reader.real("beta_fast", default=32.0),
        beta_slow=reader.real("beta_slow", default=1.0),
        truncate=reader.flag("truncate", default=True),
        attention_factor=_yarn_attention_factor(reader, factor),
    )


def _read_kind(reader: FieldReader) -> RopeKind:
    name = reader.raw("rope_type")
    old_name = reader.raw("type")
    name = old_name if name is None else name
    try:
        return RopeKind("default" if name is None else name)
    except ValueError:
        reader.problem(
            "rope_type", name, expected="one of " + ", ".join(kind.value for kind in RopeKind)
        )
        # The fields of an unknown type would only repeat the same complaint.
        reader.ignore([field for field, _ in reader.untaken()])
        return RopeKind.NONE


def _yarn_attention_factor(reader: FieldReader, factor: float) -> float:
    mscale, mscale_all = reader.raw("mscale"), reader.raw("mscale_all_dim")
    given = reader.raw("attention_factor")
    if given is not None:
        return reader.real("attention_factor")
    if mscale and mscale_all:
        top = _yarn_scale(factor, reader.real("mscale"))
        return top / _yarn_scale(factor, reader.real("mscale_all_dim"))
    return _yarn_scale(factor, 1.0)


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
