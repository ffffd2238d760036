# SPDX-License-Identifier: MIT
"""The torch plane's side: masks before sampling, matchers after it.

On the CPU a matcher goes on as soon as its token is sampled. On a device the host would have to
wait for that token. So its copy is only begun, and the matcher goes on when the token is needed:
for the mask of the next forward, which by then runs on the device, or for the result of this one,
whichever comes first, once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from tokenspeed_grammar.backend import Mask, Matcher
from tokenspeed_grammar.live import ConstrainedRow, Endings, LiveGrammars
from tokenspeed_hookspecs import AdmittedRequest, Batch, FinishReason


@frozen
class HostCopy:
    """Tokens on their way to the host; they are there once `arrival`, if any, has come."""

    tokens: Tensor
    arrival: torch.cuda.Event | None = None

    def wait(self) -> list[int]:
        """The tokens, once they are there."""
        if self.arrival is not None:
            self.arrival.synchronize()
        found: list[int] = self.tokens.tolist()
        return found

    @property
    def is_there(self) -> bool:
        """Whether nobody has to wait."""
        return self.arrival is None


def copy_to_host(tokens: Tensor) -> HostCopy:
    """Begin to copy tokens; those of the CPU are there."""
    if not tokens.is_cuda:
        return HostCopy(tokens)
    host, arrival = tokens.to("cpu", non_blocking=True), torch.cuda.Event()
    arrival.record()
    return HostCopy(host, arrival)


@define(eq=False)
class _Step:
    """One forward's constrained rows, and what came of them once they went on."""

    batch: Batch
    rows: list[ConstrainedRow]
    copy: HostCopy
    endings: Endings | None = None


@define(eq=False)
class TorchGrammar:
    """The plugin's extension of the torch plane."""

    name: str
    live: LiveGrammars
    copy: Callable[[Tensor], HostCopy] = copy_to_host
    _rows: list[ConstrainedRow] = field(factory=list, init=False)
    _steps: deque[_Step] = field(factory=deque, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def on_admit(self, requests: Sequence[AdmittedRequest]) -> None:
        """Learn of requests."""
        self.live.admit(requests)

    def on_release(self, request_ids: Sequence[str]) -> None:
        """Forget requests."""
        self.live.release(request_ids)

    def prepare_inputs(self, batch: Batch, matchers: Sequence[tuple[str, Matcher]] | None) -> None:
        """Take the matchers of requests that may run from now on."""
        if matchers:
            self.live.attach(matchers)

    def logits(self, batch: Batch, logits: Tensor) -> Tensor | None:
        """Set to minus infinity, in place, what the grammars do not allow."""
        with self._lock:
            for step in self._steps:
                self._resolve(step)
            self._rows = self.live.rows(batch)
            if not self._rows:
                return None
            mask = self.live.fill(self._rows)
        apply_mask(logits, mask, rows=[each.row for each in self._rows])
        return None

    def sampled(self, batch: Batch, tokens: Tensor) -> None:
        """Note which tokens the matchers go on by."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        step = _Step(batch, rows, self.copy(tokens))
        with self._lock:
            if step.copy.is_there:
                self._resolve(step)
            self._steps.append(step)

    def endings(self, batch: Batch) -> Mapping[int, FinishReason]:
        """The requests that this forward ends."""
        with self._lock:
            if not self._steps or self._steps[0].batch is not batch:
                return {}
            return self._resolve(self._steps.popleft())

    def _resolve(self, step: _Step) -> Endings:
        """Let the matchers go on by a forward's tokens, once, whoever asks first."""
        if step.endings is None:
            tokens = step.copy.wait()
            step.endings = self.live.advance(step.rows, [tokens[each.row] for each in step.rows])
        return step.endings


def apply_mask(logits: Tensor, mask: Mask, *, rows: Sequence[int]) -> None:
    """Bar what a mask int32 [n, words] leaves out, in n rows of logits [rows, vocab], in place."""
    vocab = logits.shape[-1]
    if logits.device.type == "cpu":
        barred = _barred_on_host(mask, vocab)
    else:
        words = torch.from_numpy(mask).to(logits.device, non_blocking=True)
        barred = barred_on_device(words, vocab)
    if len(rows) == len(logits):
        logits.masked_fill_(barred, -torch.inf)
        return
    for place, row in enumerate(rows):
        logits[row].masked_fill_(barred[place], -torch.inf)


def _barred_on_host(mask: Mask, vocab: int) -> Tensor:
    bits = np.unpackbits((~mask).view(np.uint8), axis=1, count=vocab, bitorder="little")
    return torch.from_numpy(bits.view(np.bool_))


def barred_on_device(words: Tensor, vocab: int) -> Tensor:
    """The tokens that words int32 [n, words] leave out, bool [n, vocab]."""
    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    bits = (words.unsqueeze(-1) >> shifts) & 1
    return bits.flatten(1)[:, :vocab] == 0
