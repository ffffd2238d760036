# SPDX-License-Identifier: MIT
"""What a forward leaves on the device, and how it becomes a result on the host."""

from __future__ import annotations

import numpy as np
from attrs import define, frozen

from tokenspeed_core.torch_plane.device import Device, Mark
from tokenspeed_core.torch_plane.logprobs import Scores
from tokenspeed_core.torch_plane.plane_thread import Task
from tokenspeed_core.torch_plane.sampler import Sampled
from tokenspeed_hookspecs import Alternatives, Batch, ForwardResult


@frozen(eq=False)
class Outputs:
    """The host's copies of a forward's tensors; whole once `mark` is reached."""

    sampled: Sampled
    scores: Scores | None
    prompt_scores: Scores | None
    mark: Mark

    def result(self) -> ForwardResult:
        """Everything as the loop takes it, once the mark is reached."""
        scores, prompt = self.scores, self.prompt_scores
        is_bad = self.sampled.is_bad.numpy()
        return ForwardResult(
            tokens=self.sampled.tokens.tolist(),
            logprobs=None if scores is None else scores.values.tolist(),
            alternatives=_alternatives(scores),
            prompt_logprobs=None if prompt is None else prompt.values.numpy(),
            prompt_alternatives=_alternatives(prompt),
            nan_rows=np.flatnonzero(is_bad).tolist() if is_bad.any() else (),
        )


@define(eq=False)
class TorchForward:
    """A forward that was posted to the plane's thread."""

    task: Task[Outputs | None]
    batch: Batch


def collect(
    device: Device, sampled: Sampled, *, scores: Scores | None, prompt_scores: Scores | None
) -> Outputs:
    """Begin to copy a forward's tensors to the host, and mark where the copies end."""
    return Outputs(
        Sampled(device.to_host(sampled.tokens), device.to_host(sampled.is_bad)),
        None if scores is None else scores.each(device.to_host),
        None if prompt_scores is None else prompt_scores.each(device.to_host),
        device.mark(),
    )


def _alternatives(scores: Scores | None) -> Alternatives | None:
    if scores is None or scores.alternative_values is None or scores.alternative_ids is None:
        return None
    return Alternatives(scores.alternative_values.numpy(), scores.alternative_ids.numpy())
