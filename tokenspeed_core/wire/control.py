# SPDX-License-Identifier: MIT
"""Control requests and replies as tagged positional arrays.

A request is `[tag, rid, http_worker_ipc, fields..., more]`; rid and http_worker_ipc are nil, and
`more` is a map of the arguments that have no field. A reply is `[tag, rid, http_worker_ipc,
fields..., engine index, more]`. Operations that are not listed here, such as a plugin's, travel as
`["ControlReqInput", name, arguments]` and `["ControlReqOutput", name, success, message, values,
engine index]`. What the arguments may be is the operation's own to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from tokenspeed_core.wire.packing import WireError, decoder_of, pack, tensors_in, unpack
from tokenspeed_hookspecs import ControlReply, ControlRequest

REQUEST_TAG = "ControlReqInput"
REPLY_TAG = "ControlReqOutput"
BASE = (None, None)
OUTCOME = ("success", "message")
REQUIRED: Any = None


@frozen
class Operation:
    """An operation with a tag of its own: the fields of its request, with defaults, and those of
    its reply."""

    name: str
    tag: str
    fields: Mapping[str, object] = field(factory=dict)
    reply: tuple[str, ...] = OUTCOME

    @property
    def request_tag(self) -> str:
        """The tag of its request."""
        return self.tag if self.tag == "ProfileReq" else f"{self.tag}ReqInput"

    @property
    def reply_tag(self) -> str:
        """The tag of its reply."""
        return f"{self.request_tag.removesuffix('Input')}Output"


@frozen
class ReceivedReply:
    """A control reply, and the index of the engine that sent it."""

    engine_index: int
    reply: ControlReply


_GROUP = {"group_name": "weight_update_group"}
OPERATIONS = (
    Operation("pause", "PauseScheduler", {"mode": "abort"}),
    Operation("resume", "ResumeScheduler"),
    Operation("is_paused", "IsSchedulerPaused", reply=("is_paused",)),
    Operation("flush_cache", "FlushCache", reply=("success",)),
    Operation("release_memory", "ReleaseMemoryOccupation", {"tags": None}),
    Operation("resume_memory", "ResumeMemoryOccupation", {"tags": None}),
    Operation("is_sleeping", "IsSleeping", reply=("is_sleeping",)),
    Operation(
        "profile",
        "ProfileReq",
        {
            "type": REQUIRED,
            "output_dir": None,
            "start_step": None,
            "num_steps": None,
            "activities": None,
            "profile_by_stage": False,
            "with_stack": None,
            "record_shapes": None,
            "profile_id": None,
        },
    ),
    Operation(
        "init_weights_update_group",
        "InitWeightsUpdateGroup",
        {
            "master_address": REQUIRED,
            "master_port": REQUIRED,
            "rank_offset": REQUIRED,
            "world_size": REQUIRED,
            **_GROUP,
            "backend": "nccl",
        },
    ),
    Operation("destroy_weights_update_group", "DestroyWeightsUpdateGroup", _GROUP),
    Operation(
        "update_weights_from_distributed",
        "UpdateWeightsFromDistributed",
        {
            "names": REQUIRED,
            "dtype_names": REQUIRED,
            "shapes": REQUIRED,
            **_GROUP,
            "flush_cache": True,
            "weight_version": None,
        },
    ),
    Operation(
        "update_weights_from_disk",
        "UpdateWeightFromDisk",
        {"model_path": REQUIRED, "load_format": None, "weight_version": None, "flush_cache": True},
        reply=(*OUTCOME, "num_paused_requests"),
    ),
    Operation(
        "update_weights_from_tensor",
        "UpdateWeightsFromTensor",
        {
            "serialized_named_tensors": REQUIRED,
            "load_format": None,
            "flush_cache": True,
            "weight_version": None,
        },
    ),
)
_BY_NAME = {each.name: each for each in OPERATIONS}
_BY_REQUEST_TAG = {each.request_tag: each for each in OPERATIONS}
_BY_REPLY_TAG = {each.reply_tag: each for each in OPERATIONS}


def pack_control(request: ControlRequest) -> bytes:
    """Encode a control request; WireError if an argument has no place on the wire."""
    what = f"control request {request.name!r}"
    operation = _BY_NAME.get(request.name)
    if operation is None:
        return _pack([REQUEST_TAG, request.name, request.arguments], what)
    given = dict(request.arguments)
    values = [given.pop(name, default) for name, default in operation.fields.items()]
    return _pack([operation.request_tag, *BASE, *values, *([given] if given else [])], what)


def unpack_control(payload: bytes) -> ControlRequest:
    """Decode a control request; arguments that are nil count as not given."""
    found = _array(payload, "a control request")
    tag, values = found[0], found[1:]
    if tag == REQUEST_TAG:
        name, arguments = [*values, None, None][:2]
        return ControlRequest(_name(name), _map(arguments, "the arguments"))
    operation = _BY_REQUEST_TAG.get(tag)
    if operation is None:
        raise WireError(f"expected the tag of a control request, got {tag!r:.80}")
    values = values[len(BASE) :]
    named = {**operation.fields, **dict(zip(operation.fields, values, strict=False))}
    more = _map(_at(values, len(operation.fields)), "further arguments")
    arguments = {name: value for name, value in named.items() if value is not None}
    return ControlRequest(operation.name, {**arguments, **more})


def pack_reply(reply: ControlReply, engine_index: int) -> bytes:
    """Encode the reply of one engine."""
    what = f"reply to {reply.name!r}"
    operation = _BY_NAME.get(reply.name)
    if operation is None:
        ended = [reply.success, reply.message, reply.values, engine_index]
        return _pack([REPLY_TAG, reply.name, *ended], what)
    given = {"success": reply.success, "message": reply.message, **reply.values}
    values = [given.pop(name, _absent(name)) for name in operation.reply]
    if given.get("success") is True:
        del given["success"]
    if not given.get("message"):
        given.pop("message", None)
    more = [given] if given else []
    return _pack([operation.reply_tag, *BASE, *values, engine_index, *more], what)


def unpack_reply(payload: bytes) -> ReceivedReply:
    """Decode one engine's reply."""
    found = _array(payload, "a control reply")
    tag, values = found[0], found[1:]
    if tag == REPLY_TAG:
        name, success, message, given, index = [*values, *[None] * 5][:5]
        reply = _reply(_name(name), {"success": success, "message": message, **_map(given, "")})
        return ReceivedReply(_index(index), reply)
    operation = _BY_REPLY_TAG.get(tag)
    if operation is None:
        raise WireError(f"expected the tag of a control reply, got {tag!r:.80}")
    values = values[len(BASE) :]
    count = len(operation.reply)
    given = dict(zip(operation.reply, values, strict=False))
    more = _map(_at(values, count + 1), "further values")
    return ReceivedReply(_index(_at(values, count)), _reply(operation.name, {**given, **more}))


def _reply(name: str, values: dict[str, object]) -> ControlReply:
    success, message = values.pop("success", True), values.pop("message", "")
    if not isinstance(success, bool) or not isinstance(message, str):
        raise WireError(
            f"reply to {name!r}: expected success as a bool and message as a text, got "
            f"{success!r:.80} and {message!r:.80}"
        )
    return ControlReply(name, success, message, values)


def _absent(name: str) -> object:
    return 0 if name == "num_paused_requests" else None


def _pack(message: list[object], what: str) -> bytes:
    """Refuse here what is too deep to be read: nobody would answer it at the other end."""
    try:
        for each in message:
            tensors_in(each)
    except WireError as error:
        raise WireError(f"{what} cannot be sent: {error}") from error
    return pack(message, what)


def _array(payload: bytes, what: str) -> list[Any]:
    found = unpack(_DECODER, payload, what=what)
    if not found or not isinstance(found[0], str):
        raise WireError(f"{what}: expected a tag first, got {found!r:.80}")
    return [found[0], *(tensors_in(each) for each in found[1:])]


def _at(values: list[Any], place: int) -> Any:
    return values[place] if place < len(values) else None


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise WireError(f"expected the name of a control operation, got {value!r:.80}")
    return value


def _index(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise WireError(f"expected an engine index, got {value!r:.80}")
    return value


def _map(value: object, what: str) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise WireError(f"expected {what or 'values'} as a map from names, got {value!r:.80}")
    return value


_DECODER = decoder_of(list[Any])
