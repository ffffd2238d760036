# SPDX-License-Identifier: MIT
"""The plane as the loop uses it: setup, failures, extensions, what it keeps of requests."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from tokenspeed_core.config import EngineConfig, EngineSection, SchedulerSection
from tokenspeed_core.errors import ConfigError, EngineError
from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.tiny_model import TinyModel, tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine
from tokenspeed_core.torch_plane.plane import TorchDataPlane
from tokenspeed_hookspecs import (
    AdmittedRequest,
    Batch,
    CacheOperation,
    CacheOperationKind,
    DataPlane,
    DataPlaneExtension,
    Dispatch,
    PageMove,
    Plan,
    Plugin,
    Round,
    hookimpl,
)

MakeEngine = Callable[..., TorchEngine]
PROMPT = [(7 * i) % 290 for i in range(40)]


class Watching(Plugin):
    """Notes each stage; changes the logits and fails where a test wants it."""

    name = "watching"

    def __init__(self, options: Any, engine: Any) -> None:
        super().__init__(options, engine)
        self.seen: list[str] = []
        self.models: list[object] = []
        self.change: Callable[[Batch, Tensor], Tensor | None] = lambda batch, logits: None

    @hookimpl
    def extend_data_plane(self, plane: DataPlane) -> Sequence[DataPlaneExtension]:
        return [self]

    @hookimpl
    def dispatch(self, round: Round) -> None:
        assert round.dispatch is not None
        round.dispatch.inputs[self.name] = round.number

    def build_model(self, model: object) -> None:
        self.seen.append(f"build {type(model).__name__}")
        self.models.append(model)

    def on_admit(self, requests: Sequence[AdmittedRequest]) -> None:
        self.seen.append(f"admit {[r.request_id for r in requests]}")

    def prepare_inputs(self, batch: Batch, value: object) -> None:
        self.seen.append(f"inputs {batch.num_tokens} {type(value).__name__}")

    def logits(self, batch: Batch, logits: Tensor) -> Tensor | None:
        self.seen.append(f"logits {list(logits.shape)} {threading.current_thread().name}")
        return self.change(batch, logits)

    def sampled(self, batch: Batch, tokens: Tensor) -> None:
        self.seen.append(f"sampled {list(tokens.shape)}")

    def on_release(self, request_ids: Sequence[str]) -> None:
        self.seen.append(f"release {list(request_ids)}")


def watching_in(engine: TorchEngine) -> Watching:
    """The engine's instance of the plugin."""
    found = [each.instance for each in engine.rank.plugins]
    return next(each for each in found if isinstance(each, Watching))


def test_stages_run_in_order_on_the_planes_thread(start_engine: MakeEngine) -> None:
    """An extension sees the model, then each request from its admission to its release."""
    engine = start_engine(plugins=(Watching,), depth=0)
    engine.generate([request("a", PROMPT, budget=2, temperature=0.0)])
    forward = ["logits [1, 300] torch-plane", "sampled [1]"]
    engine.rank.data_plane.call(lambda: None)
    assert watching_in(engine).seen == [
        "build Decoder",
        "admit ['a']",
        "inputs 40 int",
        *forward,
        "inputs 1 int",
        *forward,
        "release ['a']",
    ]


def test_changed_logits_are_what_is_sampled(start_engine: MakeEngine) -> None:
    """Logits may be changed in place or replaced, and the next token follows from the choice."""
    engine = start_engine(plugins=(Watching,))

    def force(batch: Batch, logits: Tensor) -> Tensor:
        logits[:, 77] = 1e4
        return logits

    watching_in(engine).change = force
    stream = engine.generate([request("a", PROMPT, budget=3, temperature=0.9, seed=1)])[0]
    assert stream.tokens == [77, 77, 77]


def test_nan_logits_end_their_request_only(start_engine: MakeEngine) -> None:
    """NUM-01: the request with the NaN ends with an abort; its neighbour's tokens stay."""
    good = request("good", PROMPT, budget=8, temperature=0.0, ignore_eos=True)
    alone = start_engine().generate([good])[0].tokens
    engine = start_engine(plugins=(Watching,))

    def poison(batch: Batch, logits: Tensor) -> None:
        for row, request_id in enumerate(batch.request_ids):
            if request_id == "bad" and row >= batch.num_extends:
                logits[row, 5] = float("nan")

    watching_in(engine).change = poison
    bad = request("bad", PROMPT[::-1], budget=8, temperature=0.0, ignore_eos=True)
    streams = engine.generate([good, bad])
    assert streams[0].tokens == alone
    assert (streams[1].kind, len(streams[1].tokens)) == ("abort", 1)


def test_a_failing_stage_ends_serving_and_names_its_plugin(start_engine: MakeEngine) -> None:
    """The loop learns of a failure on the thread with the next call."""
    engine = start_engine(plugins=(Watching,))

    def fail(batch: Batch, logits: Tensor) -> None:
        raise ZeroDivisionError("too bad")

    watching_in(engine).change = fail
    with pytest.raises(EngineError, match=r"'watching' failed in stage logits.*too bad"):
        engine.generate([request("a", PROMPT, budget=2)])
    with pytest.raises(EngineError, match="too bad"):
        engine.rank.data_plane.poll_cache_operations()


def test_logits_of_another_shape_are_refused(start_engine: MakeEngine) -> None:
    """An extension that loses a row is named, with both shapes."""
    engine = start_engine(plugins=(Watching,))
    watching_in(engine).change = lambda batch, logits: logits[:, :-1]
    with pytest.raises(EngineError, match=r"shape \(1, 299\), expected \(1, 300\)"):
        engine.generate([request("a", PROMPT, budget=2)])


def test_calls_run_behind_what_was_asked_before(start_engine: MakeEngine) -> None:
    """A function on the thread sees the forwards before it done, and its error is the caller's."""
    plane = start_engine().rank.data_plane
    names: list[str] = []
    plane.call(lambda: names.append(threading.current_thread().name))
    assert names == ["torch-plane"]
    with pytest.raises(KeyError):
        plane.call(lambda: {"something": 1}["nothing"])
    assert plane.call(lambda: 3) == 3


def test_a_list_that_changes_afterwards_was_read(start_engine: MakeEngine) -> None:
    """The caller may use its list again as soon as the call has returned."""
    engine = start_engine(plugins=(Watching,))
    plane, gate = engine.rank.data_plane, threading.Event()
    plane.admit([])
    ids = ["a", "b"]
    busy = threading.Thread(target=plane.call, args=(gate.wait,))
    busy.start()
    plane.release(ids)
    ids.clear()
    gate.set()
    busy.join()
    plane.call(lambda: None)
    assert watching_in(engine).seen[-1] == "release ['a', 'b']"


def test_a_batch_of_somebody_unknown_ends_serving(start_engine: MakeEngine) -> None:
    """A row whose request was never admitted is an error that names request and slot."""
    plane = start_engine().rank.data_plane
    batch = Batch(
        request_ids=["ghost"],
        slots=np.array([1]),
        incarnations=[0],
        input_lengths=[1],
        num_extends=0,
        extend_prefix_lens=[],
        extend_replay_lens=[],
        prefill_lengths=[],
        input_ids=[],
        shifted_input_ids=[],
        decode_input_ids=[3],
        block_tables={},
        num_tokens=1,
    )
    pending = plane.execute(Plan(batch, (), {}, {}, (), True), Dispatch())
    assert pending is not None
    with pytest.raises(EngineError, match="'ghost' in slot 1, which was never admitted"):
        plane.complete(pending)


def test_an_operation_without_its_pool_ends_serving(start_engine: MakeEngine) -> None:
    """A write-back where there are no host pages is an error that names the option."""
    plane = start_engine().rank.data_plane
    move = PageMove("full", [1], [1])
    operation = CacheOperation(1, CacheOperationKind.WRITE_BACK, (move,))
    plane.execute(Plan(None, (operation,), {}, {}, (), True), Dispatch())
    with pytest.raises(EngineError, match="host_pages"):
        plane.call(lambda: None)


def test_stop_lets_go_of_the_model(start_engine: MakeEngine) -> None:
    """Nothing of a stopped plane keeps the weights and the pages in memory."""
    engine = start_engine(plugins=(Watching,))
    watching = watching_in(engine)
    engine.generate([request("a", PROMPT, budget=3)])
    model = weakref.ref(watching.models.pop())
    engine.rank.stop()
    gc.collect()
    assert model() is None


def test_stop_leaves_no_thread(start_engine: MakeEngine) -> None:
    """A stopped plane has no thread; stopping again does nothing, using it is an error."""
    engine = start_engine()
    plane = engine.rank.data_plane
    plane.stop()
    plane.stop()
    assert "torch-plane" not in [each.name for each in threading.enumerate()]
    with pytest.raises(EngineError, match="after it was stopped"):
        plane.release(["a"])


def configured(tiny: TinyModel, **sections: Any) -> TorchDataPlane:
    """A plane that was made and not started."""
    engine = EngineSection(device="cpu", **sections.get("engine", {}))
    scheduler = SchedulerSection(**sections.get("scheduler", {}))
    options = {"model": tiny, **sections.get("options", {})}
    return TorchDataPlane(EngineConfig(engine=engine, scheduler=scheduler), options)


def test_a_plane_that_was_not_started_says_so(tiny: TinyModel) -> None:
    """Using a plane before its start is an error; stopping it is not."""
    plane = configured(tiny)
    with pytest.raises(EngineError, match="before it was started"):
        plane.release([])
    plane.stop()


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"scheduler": {"num_pages": 2}}, "num_pages: 2 pages of 64 tokens are too few"),
        (
            {"scheduler": {"num_pages": 9}, "engine": {"max_model_len": 1000}},
            "for a request of 1000 tokens; at least 18 are needed",
        ),
        ({"engine": {"max_model_len": 2000}}, "knows 1024 positions, got 2000"),
        ({"scheduler": {"num_pages": 10**10}}, "all pools together hold 10000000001 pages"),
        ({"options": {"modle": 1}}, "data_plane.modle: the torch plane has no such option"),
    ],
)
def test_what_does_not_fit_is_known_before_anything_runs(
    tiny: TinyModel, sections: dict[str, Any], problem: str
) -> None:
    """A size or option that cannot work is refused by name, with what would do."""
    with pytest.raises(ConfigError, match=problem):
        configured(tiny, **sections)


@pytest.mark.parametrize("device", ["tpu", "gpu:0", "cuda:99"])
def test_an_unusable_device_is_refused(tiny: TinyModel, device: str) -> None:
    """A device that does not exist, or is not there, is named."""
    config = EngineConfig(engine=EngineSection(device=device))
    with pytest.raises(ConfigError, match=r"engine\.device"):
        TorchDataPlane(config, {"model": tiny})


def test_weights_that_do_not_load_leave_no_thread(tiny: TinyModel) -> None:
    """A failed start raises the model's own error and stops what it had started."""

    class Broken(TinyModel):
        def open_weights(self) -> Any:
            raise ModelError("cut short")

    broken = Broken(name="broken", fields={}, config=tiny.config, weights=tiny.weights)
    plane = configured(tiny, options={"model": broken})
    with pytest.raises(ModelError, match="cut short"):
        plane.start([])
    assert "torch-plane" not in [each.name for each in threading.enumerate()]


def test_the_model_is_described(tiny: TinyModel) -> None:
    """The plane tells vocabulary, length, end ids and number format before its start."""
    info = configured(tiny, engine={"dtype": "bfloat16", "max_model_len": 512}).model
    assert (info.vocab_size, info.max_model_len, info.dtype) == (300, 512, "bfloat16")
    assert info.eos_token_ids == (298, 299)


def test_two_seeds_make_two_models() -> None:
    """The tiny model's weights follow from the seed alone."""
    first, same, other = tiny_model(1), tiny_model(1), tiny_model(2)
    name = "model.norm.weight"
    assert first.weights.load(name).equal(same.weights.load(name))
    assert not first.weights.load(name).equal(other.weights.load(name))
