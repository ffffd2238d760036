# SPDX-License-Identifier: MIT
"""Requests, aborts and control requests as frames."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tokenspeed_core.wire.codec import ABORT, ADD, CONTROL, decode_message, encode_message
from tokenspeed_core.wire.packing import Tensor, TensorBytes, WireError
from tokenspeed_core.wire.sampling import TOP_K_ALL
from tokenspeed_hookspecs import (
    AbortRequests,
    AddRequest,
    ControlRequest,
    LogprobOptions,
    Message,
    SamplingParams,
)

# Captured from the gateway.
GATEWAY_ADD = bytes.fromhex(
    "9bb9546f6b656e697a656447656e6572617465526571496e707574a27631c0c0930b1621dc001d02c09107cb"
    "3fe0000000000000cb3fd0000000000000ce40000000cb0000000000000000cb0000000000000000cb000000"
    "0000000000cb3ff000000000000000c0c0c0c0c3c3c3c2c0c0c0c0c0c0019000c3c3ff00c0c3"
)
GATEWAY_REQUEST = AddRequest(
    "v1",
    [11, 22, 33],
    SamplingParams(
        max_new_tokens=2, temperature=0.5, top_p=0.25, stop_token_ids=(7,), ignore_eos=True
    ),
    logprobs=LogprobOptions(),
)
PICKLE = msgspec.msgpack.Ext(1, b".")
ASKS_FOR_ALL = AddRequest(
    "all",
    [1, 2],
    SamplingParams(
        max_new_tokens=5,
        min_new_tokens=1,
        temperature=0.7,
        top_k=4,
        top_p=0.5,
        min_p=0.1,
        frequency_penalty=0.2,
        presence_penalty=-0.3,
        repetition_penalty=1.1,
        logit_bias={3: -1.5},
        stop=("end", "stop"),
        stop_token_ids=(8, 9),
        ignore_eos=True,
        seed=42,
        stream_interval=4,
    ),
    stream=False,
    logprobs=LogprobOptions(start=0, top=3),
    features={"regex": "a+", "bootstrap": {"host": "h", "port": 1, "room": 2}, "own": [1, "b"]},
)


def add(*fields: object) -> list[bytes]:
    """The frames of an add with these fields after its tag."""
    return [ADD, msgspec.msgpack.encode(["TokenizedGenerateReqInput", *fields])]


def decode_add(*fields: object) -> AddRequest:
    """The request that an add with these fields decodes to."""
    request = decode_message(add(*fields))
    assert isinstance(request, AddRequest)
    return request


def sampling(*, count: int = 29, **fields: Any) -> list[object]:
    """The first `count` sampling fields, normalised defaults but for those given."""
    defaults: dict[str, object] = {
        **dict.fromkeys(("max_new_tokens", "stop", "stop_token_ids")),
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": TOP_K_ALL,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        **dict.fromkeys(("json_schema", "regex", "ebnf", "structural_tag")),
        "ignore_eos": False,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "no_stop_trim": False,
        **dict.fromkeys(("thinking_budget", "custom_params", "stream_interval")),
        **dict.fromkeys(("logit_bias", "seed", "logprobs")),
        "n": 1,
        "stop_strs": [],
        "stop_str_max_len": 0,
        "is_normalized": True,
    }
    return [*(defaults | fields).values()][:count]


def test_a_request_is_the_gateways_bytes() -> None:
    """Our encoder writes what the gateway's wrote, byte for byte."""
    assert encode_message(GATEWAY_REQUEST) == [ADD, GATEWAY_ADD]


def test_the_gateways_bytes_are_a_request() -> None:
    """The captured request decodes to what its client asked for."""
    assert decode_message([ADD, GATEWAY_ADD]) == GATEWAY_REQUEST


@pytest.mark.parametrize(
    "message",
    [
        GATEWAY_REQUEST,
        ASKS_FOR_ALL,
        AddRequest("greedy", [1], SamplingParams(temperature=0.0)),
        AbortRequests(("a", "b")),
        ControlRequest("pause", {"mode": "keep"}),
        ControlRequest("resume"),
        ControlRequest("update_weights_from_disk", {"model_path": "m", "flush_cache": False}),
        ControlRequest("release_memory", {"tags": ["weights"], "unknown": 1}),
        ControlRequest("describe"),
        ControlRequest("of_a_plugin", {"a": {"b": [1.5, None]}}),
    ],
    ids=lambda message: type(message).__name__,
)
def test_nothing_of_a_message_gets_lost(message: Message) -> None:
    """What our client sends is what our engine reads."""
    assert decode_message(encode_message(message)) == message


def test_an_abort_is_the_gateways_bytes() -> None:
    """An abort is the type byte 01 and a list of ids."""
    assert encode_message(AbortRequests(("v1",))) == [ABORT, bytes.fromhex("91a27631")]


@pytest.mark.parametrize("count", [10, 22, 23, 25, 29])
def test_a_request_may_be_short_or_long(count: int) -> None:
    """Missing fields have their defaults, and fields past the known ones are ignored."""
    fields: list[Any] = [
        "r",
        None,
        None,
        [1, 2],
        sampling(),
        False,
        -1,
        0,
        None,
        True,
        None,
        None,
        None,
    ]
    fields += [False, 0.0, *[None] * 10, "new", 1, {}, []]
    assert decode_add(*fields[:count]) == AddRequest("r", [1, 2])


def test_short_sampling_has_defaults() -> None:
    """Sampling fields that are missing at the end have the wire's defaults."""
    params = decode_add("r", None, None, [1], sampling(count=6, top_k=-1)).sampling
    assert params == SamplingParams()


@pytest.mark.parametrize("top_k", [TOP_K_ALL, -1])
def test_all_tokens_come_in_two_forms(top_k: int) -> None:
    """Both -1 and 2^30 leave the top-k filter off."""
    assert decode_add("r", None, None, [1], sampling(top_k=top_k)).sampling.top_k == -1


def test_normalised_stops_are_final() -> None:
    """A normalised request's stop strings are the derived ones."""
    fields = sampling(stop="ignored", stop_strs=["a"])
    assert decode_add("r", None, None, [1], fields).sampling.stop == ("a",)


def test_stops_of_the_caller_are_read() -> None:
    """A request that is not normalised brings its stop strings as its caller gave them."""
    fields = sampling(stop="a", is_normalized=False)
    assert decode_add("r", None, None, [1], fields).sampling.stop == ("a",)


@pytest.mark.parametrize("name", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_a_constraint_becomes_a_feature(name: str) -> None:
    """A constraint on the text is for a plugin that claims it."""
    constraint: dict[str, Any] = {name: "x"}
    fields = sampling(**constraint)
    assert decode_add("r", None, None, [1], fields).features == {name: "x"}


def test_what_the_core_cannot_do_becomes_a_feature() -> None:
    """Fields without a meaning here are not dropped silently: an engine refuses them by name."""
    request = decode_add(
        "r", None, None, [1], sampling(n=2), False, -1, 0, [5], True, None, None, "code", True
    )
    assert set(request.features) == {
        "n",
        "token_ids_logprob",
        "custom_logit_processor",
        "return_hidden_states",
    }


@pytest.mark.parametrize("in_frame", [False, True])
def test_a_tensor_is_inline_or_in_a_frame(in_frame: bool) -> None:
    """A tensor's bytes stand in the array or in a further frame, counted from 1."""
    data: Any = 1 if in_frame else msgspec.msgpack.Ext(3, b"abcd")
    fields: list[Any] = [
        "r",
        None,
        None,
        [1],
        sampling(),
        *[False, -1, 0, None, True],
        *[None] * 3,
        False,
    ]
    fields += [0.0, *[None] * 6, [[[1, 7, 8, [[0, 1]], ["float32", [1], data]]]]]
    request = decode_message([*add(*fields), *([b"abcd"] if in_frame else [])])
    assert isinstance(request, AddRequest)
    tensor = Tensor("float32", [1], TensorBytes(b"abcd"))
    assert request.features == {"multimodal_inputs": [[[1, 7, 8, [[0, 1]], tensor]]]}


def test_a_tensor_travels_in_a_feature() -> None:
    """Our client may put tensors into features."""
    tensor = Tensor("int64", [0], TensorBytes())
    request = AddRequest("r", [1], features={"images": {"a": tensor}})
    assert decode_message(encode_message(request)) == request


def test_numpy_numbers_are_numbers() -> None:
    """Prompts and parameters may be numpy's."""
    prompt: Any = np.arange(3, dtype=np.int32)
    numbers: dict[str, Any] = {"top_p": np.float32(0.5), "seed": np.int64(3)}
    request = AddRequest("r", prompt, SamplingParams(**numbers))
    expected = AddRequest("r", [0, 1, 2], SamplingParams(top_p=0.5, seed=3))
    assert decode_message(encode_message(request)) == expected


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([], "a type byte and a payload, got 0"),
        ([ADD], "a type byte and a payload, got 1"),
        ([b"\x02", b"\x90"], "type 00, 01 or 03, got 02"),
        ([b"", b"\x90"], "got nothing"),
        ([ADD, b""], "0 bytes"),
        ([ADD, b"\xc1" * 20], "got 20 bytes starting with c1 c1"),
        ([CONTROL, b"\x91" * 5000], "recursion"),
        ([ADD, b"\xdd\xff\xff\xff\xff"], "truncated"),
        (add("r", None, None, ["x"]), "Expected `int`, got `str`"),
        (add("r", None, None, [1], [None, None, None, None]), "Expected `float`, got `None`"),
        (add("r", None, None, [1], sampling(logit_bias={"a": 1.0})), "token ids as keys"),
        (
            add("r", *[None] * 2, [1], sampling(custom_params=msgspec.msgpack.Ext(1, b"."))),
            "type 1",
        ),
        ([ABORT, msgspec.msgpack.encode([1])], "Expected `str`, got `int`"),
        ([CONTROL, b"\x90"], "a tag first"),
        ([CONTROL, b"\x91\x90"], "a tag first"),
        ([CONTROL, msgspec.msgpack.encode(["Nothing"])], "tag of a control request, got 'Nothing'"),
        ([CONTROL, msgspec.msgpack.encode(["ControlReqInput", 3])], "name of a control operation"),
        ([CONTROL, msgspec.msgpack.encode(["ControlReqInput", "x", 3])], "map from names"),
    ],
)
def test_what_cannot_be_read_is_a_wire_error(frames: list[bytes], text: str) -> None:
    """An error tells what was expected and what came."""
    with pytest.raises(WireError, match=text):
        decode_message(frames)


@pytest.mark.parametrize("value", [object(), 1 << 70, "\ud800"])
def test_what_cannot_be_written_is_a_wire_error(value: object) -> None:
    """A value without a place on the wire is refused before anything is sent."""
    with pytest.raises(WireError, match="request 'r' cannot be sent"):
        encode_message(AddRequest("r", [1], features={"own": value}))
