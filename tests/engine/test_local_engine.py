# SPDX-License-Identifier: MIT
"""The engine in this process: lists, streams, asyncio, aborts, state, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tokenspeed_core import (
    EngineError,
    LocalEngine,
    LogprobOptions,
    Plugin,
    SamplingParams,
    compose,
    hookimpl,
)
from tokenspeed_core.testing import telling_tokens
from tokenspeed_hookspecs import (
    AdmissionStage,
    ControlOperation,
    ControlReply,
    Hold,
    Pass,
    Request,
    Round,
    Verdict,
)

StartEngine = Callable[..., LocalEngine]
LONG = 2000


class Broken(Plugin):
    """Fails when the third batch is dispatched."""

    name = "broken"
    num_seen = 0

    @hookimpl
    def dispatch(self, round: Round) -> None:
        self.num_seen += 1
        if self.num_seen == 3:
            raise RuntimeError("the sky fell")


class Leaking(Plugin):
    """Cannot close what it holds."""

    name = "leaking"

    @hookimpl
    def stop(self) -> None:
        raise OSError("the tap is stuck")


class Door:
    """A stage that is shut until `is_open`."""

    name = "door"
    is_open = False

    def enter(self, request: Request) -> Verdict:
        return Pass() if self.is_open else Hold()

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        return [int(self.is_open)] * len(held)

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        return [Pass() if code else Hold() for code in agreed]

    def leave(self, request_id: str) -> None:
        pass


class Doorkeeper(Plugin):
    """Brings the door along."""

    name = "doorkeeper"

    @hookimpl
    def admission_stages(self) -> Sequence[AdmissionStage]:
        self.door = Door()
        return [self.door]


def test_one_prompt_gives_one_completion(start: StartEngine) -> None:
    """A prompt of token ids is completed; usage counts its tokens."""
    completion = start().generate([1, 2, 3], max_new_tokens=4)
    assert completion.token_ids == telling_tokens(4)
    assert completion.finish_reason == "length"
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (3, 4)


def test_several_prompts_come_back_in_their_order(start: StartEngine) -> None:
    """A list of prompts gives a list of completions, each its own."""
    completions = start().generate([[1], [1, 2], [1, 2, 3]], max_new_tokens=2)
    assert [each.usage.prompt_tokens for each in completions] == [1, 2, 3]


def test_no_prompts_give_no_completions(start: StartEngine) -> None:
    """An empty list is a list of no prompts."""
    nothing: list[list[int]] = []
    assert start().generate(nothing) == []


def test_a_second_request_is_served_from_the_cache(start: StartEngine) -> None:
    """The whole pages of a repeated prompt are counted as cached."""
    engine = start()
    engine.generate(list(range(40)), max_new_tokens=1)
    assert engine.generate(list(range(40)), max_new_tokens=1).usage.cached_tokens == 32


def test_sampling_parameters_by_name_and_as_one_record_agree(start: StartEngine) -> None:
    """A field given by name goes over the record's."""
    engine = start()
    record = SamplingParams(max_new_tokens=9, stop_token_ids=[1001])
    assert engine.generate([1], sampling=record, max_new_tokens=1).token_ids == [1000]
    assert engine.generate([1], sampling=record).finish.matched == 1001


def test_an_unknown_wish_is_refused(start: StartEngine) -> None:
    """A misspelt parameter raises in the caller, naming it."""
    with pytest.raises(TypeError, match="'max_tokens'; did you mean 'max_new_tokens'"):
        start().generate([1], max_tokens=3)


def test_logprobs_come_with_each_token(start: StartEngine) -> None:
    """A request that asks for logprobs has one for every token of its output."""
    completion = start().generate([1, 2], max_new_tokens=3, logprobs=LogprobOptions())
    assert completion.logprobs is not None
    assert len(completion.logprobs) == 3


def test_text_needs_a_tokenizer(start: StartEngine) -> None:
    """A text prompt on an engine without a tokenizer says what is missing."""
    with pytest.raises(EngineError, match="tokenizer"):
        start().generate("hello")


def test_a_bad_request_ends_with_a_reason(start: StartEngine) -> None:
    """What a request asks for wrongly ends that request alone, with the allowed range."""
    engine = start()
    assert "top_p must be in" in str(engine.generate([1], top_p=7.0).finish.message)
    assert engine.generate([1], max_new_tokens=1).finish_reason == "length"


def test_many_threads_share_an_engine(start: StartEngine) -> None:
    """Requests of several threads at once each get their own answer."""
    engine = start()
    found: dict[int, int] = {}

    def ask(size: int) -> None:
        found[size] = engine.generate([7] * size, max_new_tokens=size).usage.completion_tokens

    threads = [threading.Thread(target=ask, args=(size,)) for size in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {size: size for size in range(1, 9)}


def test_leaving_a_stream_aborts_its_request(start: StartEngine) -> None:
    """A stream that is closed early frees its slot and its pages."""
    engine = start()
    with engine.stream([1], max_new_tokens=LONG) as stream:
        pass
    assert stream.completion().finish_reason == "abort"
    engine.generate([2], max_new_tokens=3)
    assert (engine.state.running, engine.state.waiting) == (0, 0)


def test_abort_ends_the_stream_once(start: StartEngine) -> None:
    """An aborted request's stream ends, and a second abort finds nothing."""
    engine = start()
    stream = engine.stream([1], max_new_tokens=LONG, request_id="mine")
    assert engine.abort("mine")
    assert stream.completion().finish.message == "aborted by the caller"
    assert not engine.abort("mine")


def test_an_id_in_use_is_refused_and_its_owner_goes_on(start: StartEngine) -> None:
    """A second request of a live id raises in its caller; the first is not disturbed."""
    engine = start()
    stream = engine.stream([1], max_new_tokens=200, request_id="mine")
    with pytest.raises(ValueError, match="'mine' is in use"):
        engine.stream([2], request_id="mine")
    assert stream.completion().usage.completion_tokens == 200


def test_an_async_stream_has_its_completion(start: StartEngine) -> None:
    """An async stream ends by itself and then has the whole."""
    engine = start()

    async def ask() -> list[int]:
        streams = [engine.astream([1], max_new_tokens=size) for size in (1, 2, 3)]
        return [len((await stream.completion()).token_ids) for stream in streams]

    assert asyncio.run(ask()) == [1, 2, 3]


def test_cancelling_the_reader_aborts_the_request(start: StartEngine) -> None:
    """A cancelled task leaves nothing running."""
    engine = start()

    async def ask() -> None:
        async with asyncio.timeout(0.05):
            await engine.astream([1], max_new_tokens=LONG).completion()

    with pytest.raises(TimeoutError):
        asyncio.run(ask())
    engine.generate([2], max_new_tokens=3)
    assert engine.state.running == 0


def test_a_reader_whose_event_loop_is_gone_harms_nobody(start: StartEngine) -> None:
    """Outputs for a closed event loop are dropped; other streams go on."""
    engine = start()

    async def begin() -> object:
        return engine.astream([1], max_new_tokens=LONG)

    left = asyncio.run(begin())
    assert engine.generate([2], max_new_tokens=20).finish_reason == "length"
    assert left is not None


def test_a_broken_participant_ends_every_stream_by_name(start: StartEngine) -> None:
    """When a plugin ends the engine, streams raise an error that names plugin, hook and round."""
    engine = start(plugins=[Broken])
    streams = [engine.stream([size], max_new_tokens=LONG) for size in (1, 2)]
    for stream in streams:
        with pytest.raises(EngineError, match=r"'broken' failed in hook dispatch.*the sky fell"):
            stream.completion()
    with pytest.raises(EngineError, match="the sky fell"):
        engine.generate([1])


class Careless(Plugin):
    """Its control operations answer with something that is no reply of theirs."""

    name = "careless"

    @hookimpl
    def control_operations(self) -> Sequence[ControlOperation]:
        nothing: Any = None
        another = ControlReply("another", success=True)
        return [
            ControlOperation("none", lambda _: nothing),
            ControlOperation("other", lambda _: another),
            ControlOperation("raises", lambda _: nothing["anything"]),
        ]


@pytest.mark.parametrize("name", ["none", "other", "raises"])
def test_a_control_operation_without_a_reply_ends_the_engine(start: StartEngine, name: str) -> None:
    """Whoever waits learns which operation it was, instead of waiting for ever."""
    with pytest.raises(EngineError, match=f"control operation '{name}'"):
        start(plugins=[Careless]).control(name)


def test_stopping_ends_what_runs(start: StartEngine) -> None:
    """A request that still runs when the engine stops ends with an error that says so."""
    engine = start()
    stream = engine.stream([1], max_new_tokens=LONG)
    engine.stop()
    with pytest.raises(EngineError, match="the engine was stopped"):
        stream.completion()


def test_what_cannot_be_stopped_is_named() -> None:
    """An engine that fails while it stops says which plugin kept it from that."""
    engine = compose(data_plane="scripted", plugins=[Leaking]).start()
    with pytest.raises(EngineError, match=r"failed to stop: OSError: the tap is stuck.*'leaking'"):
        engine.stop()


def test_an_engine_must_be_started() -> None:
    """Asking an engine that does not run raises at once."""
    with pytest.raises(EngineError, match="not running"):
        compose(data_plane="scripted").generate([1])


def test_an_engine_starts_once(start: StartEngine) -> None:
    """A stopped engine says that another one is needed."""
    engine = start()
    engine.stop()
    with pytest.raises(EngineError, match="compose another"):
        engine.start()


def test_two_engines_with_different_plugins_run_side_by_side(start: StartEngine) -> None:
    """Each engine of a process has its own plugins, state and loop."""
    shut, plain = start(plugins=[Doorkeeper]), start()
    held = shut.stream([1], max_new_tokens=2)
    assert plain.generate([1], max_new_tokens=2).finish_reason == "length"
    assert (shut.state.waiting, plain.state.waiting) == (1, 0)
    (keeper,) = (p.instance for p in shut.rank.plugins if isinstance(p.instance, Doorkeeper))
    keeper.door.is_open = True
    assert held.completion().token_ids == telling_tokens(2)


def test_the_state_is_the_loops(start: StartEngine) -> None:
    """The state tells what runs now, and that everything is free again afterwards."""
    engine = start(plugins=[Doorkeeper])
    assert engine.state.plugins == ("batch_log", "doorkeeper", "finish_line")
    before = engine.state
    assert (before.running, before.waiting) == (0, 0)
    assert engine.state.round_number > before.round_number


def test_an_unknown_control_operation_is_answered(start: StartEngine) -> None:
    """A control request nobody knows gets a reply that says so."""
    reply = start().control("dance", timeout_s=10.0)
    assert not reply.success
    assert "unknown control operation 'dance'" in reply.message
