# SPDX-License-Identifier: MIT
"""What the plane knows of each request, and of the request that sits in each slot.

A request is recorded when it is admitted. The first row that names it in a slot seats it there:
its sampling parameters are written into the slot's columns, and from then on a forward gathers
those of all its rows at once. A row for a slot whose occupant is another request, or another
incarnation of the same id, seats anew; a retraction takes the length along to the next slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define

from tokenspeed_core.errors import EngineError
from tokenspeed_core.torch_plane.randomness import seed_of
from tokenspeed_hookspecs import AdmittedRequest, Batch, SamplingParams

COLUMNS = np.dtype(
    [
        ("length", np.int64),  # cached positions, those of forwards in flight included
        ("prompt_length", np.int64),
        ("seed", np.uint64),
        ("temperature", np.float32),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("min_p", np.float32),
        ("presence", np.float32),
        ("frequency", np.float32),
        ("repetition", np.float32),
        ("min_new_tokens", np.int64),
        ("is_greedy", np.bool_),
        ("has_penalties", np.bool_),
        ("has_bias", np.bool_),
        ("wants_logprobs", np.bool_),
    ]
)
# One record of COLUMNS a row; numpy has no better type for it.
Columns = npt.NDArray[Any]
GREEDY_BELOW = 1e-6


@define(eq=False)
class SeatedRequest:
    """An admitted request: its parameters as columns, and its own few arrays.

    `bias_ids` int64 and `bias_values` float32 are added to the logits; `ending_ids` int64 are
    barred until `min_new_tokens` were sampled. `saved_length` is set while it is retracted.
    """

    request_id: str
    prompt_ids: Sequence[int]
    columns: Columns
    bias_ids: npt.NDArray[np.int64]
    bias_values: npt.NDArray[np.float32]
    ending_ids: npt.NDArray[np.int64]
    incarnation: int | None = None
    slot: int = 0
    saved_length: int = 0


class Seats:
    """The admitted requests by id, and the columns over the slots."""

    def __init__(self, num_slots: int, *, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.columns: Columns = np.zeros(num_slots, COLUMNS)
        self.occupants: list[SeatedRequest | None] = [None] * num_slots
        self._admitted: dict[str, SeatedRequest] = {}
        self._vocab_size = vocab_size
        self._eos = tuple(eos_token_ids)

    def __len__(self) -> int:
        return len(self._admitted)

    def admit(self, request: AdmittedRequest) -> None:
        """Record a request, before its first row."""
        sampling = request.sampling
        bias = {t: b for t, b in (sampling.logit_bias or {}).items() if 0 <= t < self._vocab_size}
        columns = np.zeros((), COLUMNS)
        _fill(columns, request)
        self._admitted[request.request_id] = SeatedRequest(
            request_id=request.request_id,
            prompt_ids=request.prompt_ids,
            columns=columns,
            bias_ids=np.array(list(bias), dtype=np.int64),
            bias_values=np.array(list(bias.values()), dtype=np.float32),
            ending_ids=self._ending_ids(sampling),
        )

    def release(self, request_id: str) -> None:
        """Forget a request; a row of it that still comes finds its slot, without penalties."""
        seated = self._admitted.pop(request_id, None)
        if seated is not None and self.occupants[seated.slot] is seated:
            self.columns["has_penalties"][seated.slot] = False

    def seat(self, batch: Batch) -> list[SeatedRequest]:
        """Seat the rows that are new in their slot, set all lengths; return the newly seated."""
        fresh = []
        slots = batch.slots.tolist()
        rows = zip(batch.request_ids, slots, batch.incarnations, strict=True)
        for request_id, slot, incarnation in rows:
            seated = self.occupants[slot]
            if (
                seated is None
                or seated.request_id != request_id
                or seated.incarnation != incarnation
            ):
                fresh.append(self._seat(request_id, slot, incarnation=incarnation))
        self._advance(batch)
        return fresh

    def save(self, request_id: str, slot: int) -> None:
        """Note a retracted request's length, and free its slot."""
        seated = self.occupants[slot]
        if seated is not None and seated.request_id == request_id:
            seated.saved_length = int(self.columns["length"][slot])
            self.occupants[slot] = None
        elif (seated := self._admitted.get(request_id)) is not None:
            # Its prompt was computed elsewhere, and no row of it ran here yet.
            seated.saved_length = int(seated.columns["length"])

    def restore(self, request_id: str, slot: int) -> None:
        """Seat a retracted request in its new slot, as long as it was."""
        seated = self._admitted.get(request_id)
        if seated is None or not seated.saved_length:
            # It was released while it was retracted: its pages come back for nobody.
            self.occupants[slot] = None
            return
        self._take(seated, slot)
        self.columns["length"][slot] = seated.saved_length

    def _seat(self, request_id: str, slot: int, *, incarnation: int) -> SeatedRequest:
        seated = self._admitted.get(request_id)
        if seated is None:
            raise EngineError(
                f"a batch names request {request_id!r} in slot {slot}, which was never admitted "
                "or was released before its first forward"
            )
        seated.incarnation = incarnation
        self._take(seated, slot)
        return seated

    def _take(self, seated: SeatedRequest, slot: int) -> None:
        seated.slot = slot
        self.occupants[slot] = seated
        self.columns[slot] = seated.columns

    def _advance(self, batch: Batch) -> None:
        """Count what this forward caches: a chunk sets the length, a decode row adds to it."""
        extends, lengths = batch.num_extends, self.columns["length"]
        inputs = np.asarray(batch.input_lengths, dtype=np.int64)
        if extends:
            starts = np.asarray(batch.extend_prefix_lens, dtype=np.int64)
            lengths[batch.slots[:extends]] = starts + inputs[:extends]
        lengths[batch.slots[extends:]] += inputs[extends:]

    def _ending_ids(self, sampling: SamplingParams) -> npt.NDArray[np.int64]:
        ids = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            ids.update(self._eos)
        return np.array(sorted(t for t in ids if 0 <= t < self._vocab_size), dtype=np.int64)


def _fill(columns: Columns, request: AdmittedRequest) -> None:
    p = request.sampling
    columns["prompt_length"] = columns["length"] = len(request.prompt_ids)
    columns["seed"] = seed_of(request.request_id, p.seed)
    columns["temperature"] = max(p.temperature, GREEDY_BELOW)
    columns["top_k"] = max(p.top_k, 0)
    columns["top_p"] = p.top_p
    columns["min_p"] = p.min_p
    columns["presence"] = p.presence_penalty
    columns["frequency"] = p.frequency_penalty
    columns["repetition"] = p.repetition_penalty
    columns["min_new_tokens"] = p.min_new_tokens
    columns["is_greedy"] = p.top_k == 1 or p.temperature < GREEDY_BELOW
    columns["has_penalties"] = (
        p.presence_penalty != 0 or p.frequency_penalty != 0 or p.repetition_penalty != 1
    )
    columns["has_bias"] = bool(p.logit_bias)
    columns["wants_logprobs"] = request.logprobs is not None
