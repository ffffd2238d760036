# SPDX-License-Identifier: MIT
"""What each control request does, ours and the plugins'.

An operation acts where it stands in its batch of messages: after the requests that came before it.
It is answered at once, by the gate, or once a drain is over; exactly once each way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from attrs import frozen

from tokenspeed_core.errors import EngineError
from tokenspeed_core.loop.controls import (
    PAUSE,
    RELEASE,
    RESUME,
    WAKE,
    Controls,
    done,
    refused,
)
from tokenspeed_core.loop.gate import FLUSH, Gate
from tokenspeed_core.loop.parts import LoopParts
from tokenspeed_hookspecs import (
    ControlOperation,
    ControlReply,
    ControlRequest,
    GatedOperation,
    Round,
)

PROFILE = "profile"
# Their order is their codes in the gate; data-parallel ranks must hold equal ones.
WEIGHT_OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "update_weights_from_disk": ("model_path", "load_format", "weight_version"),
    "update_weights_from_tensor": ("serialized_named_tensors", "load_format", "weight_version"),
    "update_weights_from_distributed": (
        "names",
        "dtype_names",
        "shapes",
        "group_name",
        "weight_version",
    ),
    "init_weights_update_group": (
        "master_address",
        "master_port",
        "rank_offset",
        "world_size",
        "group_name",
        "backend",
    ),
    "destroy_weights_update_group": ("group_name",),
}
LOADS = tuple(name for name in WEIGHT_OPERATIONS if name.startswith("update"))
PROFILE_ARGUMENTS = (
    "type",
    "output_dir",
    "start_step",
    "num_steps",
    "activities",
    "profile_by_stage",
    "with_stack",
    "record_shapes",
    "profile_id",
)

Arguments = Mapping[str, object]
Answer = ControlReply | GatedOperation | None


@frozen
class _Own:
    """An operation of the core: the arguments it knows, and what it does with them."""

    arguments: tuple[str, ...]
    act: Callable[[Arguments, Round], Answer]


class Operations:
    """Every control request this rank answers."""

    def __init__(
        self,
        parts: LoopParts,
        controls: Controls,
        *,
        gate: Gate,
        num_withheld: Callable[[], int],
    ) -> None:
        self._plane = parts.data_plane
        self._hooks = parts.hooks
        self._theirs = parts.operations
        self._controls = controls
        self._gate = gate
        self._num_withheld = num_withheld
        self._own = self._make_own()

    def handle(self, request: ControlRequest, round: Round) -> None:
        """Act on a request; it is answered now or later."""
        answer = self._answer(request, round)
        if isinstance(answer, GatedOperation):
            self._gate.enqueue_requested(answer)
        elif answer is not None:
            self._controls.reply(answer)

    def _answer(self, request: ControlRequest, round: Round) -> Answer:
        name = request.name
        own = self._own.get(name)
        if own is None:
            theirs = self._theirs.get(name)
            if theirs is not None:
                return _asked(theirs, request)
            known = ", ".join(sorted([*self._own, *self._theirs]))
            return refused(name, f"unknown control operation {name!r}; this engine has: {known}")
        unknown = [key for key in request.arguments if key not in own.arguments]
        if unknown:
            takes = ", ".join(own.arguments) or "none"
            return refused(name, f"unknown argument {unknown[0]!r}; {name} takes: {takes}")
        return own.act(request.arguments, round)

    def _make_own(self) -> dict[str, _Own]:
        controls = self._controls
        own = {
            PAUSE: _Own(("mode",), lambda asked, _: controls.pause(asked.get("mode", "abort"))),
            RESUME: _Own((), lambda _, __: controls.resume()),
            "is_paused": _Own((), self._is_paused),
            FLUSH: _Own((), self._flush),
            RELEASE: _Own(("tags",), self._release),
            WAKE: _Own(("tags",), self._wake),
            "is_sleeping": _Own((), self._is_sleeping),
            PROFILE: _Own(PROFILE_ARGUMENTS, self._profile),
        }
        for code, (name, arguments) in enumerate(WEIGHT_OPERATIONS.items(), start=1):
            known = (*arguments, "flush_cache") if name in LOADS else arguments
            own[name] = _Own(known, self._weights(name, code))
        return own

    # --- queries and pauses ----------------------------------------------------------------------

    def _is_paused(self, asked: Arguments, round: Round) -> ControlReply:
        return done("is_paused", is_paused=self._controls.admissions_blocked)

    def _is_sleeping(self, asked: Arguments, round: Round) -> ControlReply:
        return done("is_sleeping", is_sleeping=self._controls.is_sleeping)

    def _flush(self, asked: Arguments, round: Round) -> None:
        self._gate.request_flush()

    # --- memory ----------------------------------------------------------------------------------

    def _release(self, asked: Arguments, round: Round) -> Answer:
        refuse = self._hooks.refuse_release
        refusal = refuse(round) if refuse is not None else None
        return self._controls.release(asked.get("tags"), refusal=refusal)

    def _wake(self, asked: Arguments, round: Round) -> ControlReply:
        regions = self._controls.to_resume(asked.get("tags"))
        if isinstance(regions, ControlReply):
            return regions
        self._plane.resume_memory(regions)
        return self._controls.finish_resume(regions)

    # --- what the data plane answers -------------------------------------------------------------

    def _profile(self, asked: Arguments, round: Round) -> ControlReply:
        return self._carried_out(ControlRequest(PROFILE, asked))

    def _weights(self, name: str, code: int) -> Callable[[Arguments, Round], Answer]:
        def act(asked: Arguments, round: Round) -> Answer:
            arguments = dict(asked)
            flush = arguments.pop("flush_cache", name in LOADS)
            if not isinstance(flush, bool):
                return refused(name, f"flush_cache: expected true or false, got {flush!r}")
            version = arguments.get("weight_version")
            if version is not None and not isinstance(version, str):
                return refused(name, f"weight_version: expected a text, got {version!r}")
            request = ControlRequest(name, arguments)
            told = ControlRequest(name, {**arguments, "flush_cache": flush})
            if name in LOADS and (refusal := self._refusal(told, round)) is not None:
                return refused(name, refusal)
            return GatedOperation(
                code,
                name,
                lambda: self._load(request),
                clears_cache=flush,
                succeeded=partial(self._made, told),
                failed=partial(self._plane.settle, name, agreed=False),
            )

        return act

    def _refusal(self, update: ControlRequest, round: Round) -> str | None:
        refuse, round.operation = self._hooks.refuse_weights, update
        return refuse(round) if refuse is not None else None

    def _made(self, operation: ControlRequest, round: Round) -> None:
        self._plane.settle(operation.name, agreed=True)
        if operation.name in LOADS:
            self._loaded(operation, round)

    def _loaded(self, update: ControlRequest, round: Round) -> None:
        version = update.arguments.get("weight_version")
        self._controls.loaded(version if isinstance(version, str) else None)
        if self._hooks.weights_loaded is not None:
            round.operation = update
            self._hooks.weights_loaded(round)

    def _load(self, request: ControlRequest) -> ControlReply:
        reply = self._carried_out(request)
        values = {"num_paused_requests": self._num_withheld(), **reply.values}
        return ControlReply(reply.name, reply.success, reply.message, values)

    def _carried_out(self, request: ControlRequest) -> ControlReply:
        reply = self._plane.control(request)
        if reply.name != request.name:
            raise EngineError(f"the data plane answered {request.name!r} with {reply!r}")
        return reply


OWN_NAMES = frozenset(
    (
        *(PAUSE, RESUME, "is_paused", FLUSH, RELEASE, WAKE, "is_sleeping", PROFILE, "describe"),
        *WEIGHT_OPERATIONS,
    )
)


def _asked(operation: ControlOperation, request: ControlRequest) -> ControlReply | GatedOperation:
    """Ask for a plugin's operation; EngineError names one that fails or replies to nobody."""
    name = request.name
    try:
        answer: object = operation.handle(request.arguments)
    except Exception as cause:
        told = f"{type(cause).__name__}: {cause}"
        raise EngineError(f"control operation {name!r} failed: {told}") from cause
    if isinstance(answer, ControlReply | GatedOperation) and answer.name == name:
        return answer
    raise EngineError(
        f"control operation {name!r} must return a ControlReply or a GatedOperation of that name, "
        f"got {answer!r}"
    )
