# SPDX-License-Identifier: MIT
"""What a loop is put together from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from attrs import define, field, frozen

from tokenspeed_core.requests.finish import DecodeText
from tokenspeed_core.requests.ingress import IngressLimits
from tokenspeed_hookspecs import (
    AdmissionStage,
    ControlOperation,
    DataPlane,
    Frontend,
    Ranks,
    Refuse,
    Round,
    SchedulerDriver,
    StorageTick,
)

Hook = Callable[[Round], None]


class RoundHooks(Protocol):
    """Each round hook's implementations as one call, or None when nobody implements it."""

    round_report: Callable[[Round], Mapping[str, bytes]] | None
    validate_request: Callable[[Round], Refuse | None] | None
    request_aborted: Hook | None
    refuse_weights: Callable[[Round], str | None] | None
    cache_clearing: Callable[[Round], bool] | None
    weights_loaded: Hook | None
    storage_tick: Callable[[Round], StorageTick | None] | None
    planned: Hook | None
    dispatch: Hook | None
    committed: Hook | None
    poll_events: Callable[[Round], Sequence[object]] | None
    scheduler_events: Hook | None
    drain_blocked: Callable[[Round], bool] | None
    refuse_release: Callable[[Round], str | None] | None
    busy: Callable[[Round], bool] | None
    request_finished: Hook | None
    iteration: Hook | None
    round_done: Hook | None


@frozen
class LoopSettings:
    """`in_flight_depth` forwards may await their commit; `stream_interval` tokens between chunks of
    a streaming request that names none of its own."""

    limits: IngressLimits
    in_flight_depth: int = 1
    stream_interval: int = 1


@define(kw_only=True)
class LoopParts:
    """Everything a loop works with; all of it belongs to one rank."""

    scheduler: SchedulerDriver
    data_plane: DataPlane
    frontend: Frontend | None
    ranks: Ranks
    hooks: RoundHooks
    settings: LoopSettings
    clock: Callable[[], float]
    stages: Sequence[AdmissionStage] = ()
    operations: Mapping[str, ControlOperation] = field(factory=dict)
    decode_text: DecodeText | None = None
    sleep: Callable[[float], None]
    log: logging.Logger
