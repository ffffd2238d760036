# SPDX-License-Identifier: MIT
"""Repetition, frequency and presence penalties, from what each request has seen and said.

Kept is the row of tokens of each request that has penalties, prompt and output, so the cost of a
penalty grows with the text and not with the vocabulary. The rows belong to requests, not to slots:
a retraction leaves them where they are, and a token that is computed again is written to its place
again. Nothing is allocated before the first such request comes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen
from torch import Tensor

from tokenspeed_core.torch_plane.device import placed

FIRST_ROWS = 8
# Keeps a repetition penalty of zero from dividing by it.
SMALLEST_REPETITION = 1e-6
Ints = npt.NDArray[np.int64]


@frozen(eq=False)
class Penalised:
    """The rows to penalise: their `rows` in the table, their lengths with and without the output,
    int64 [n] on the host; `strengths` float32 [3, n, 1] of repetition, frequency, presence."""

    rows: Tensor
    lengths: Ints
    prompt_lengths: Ints
    strengths: Tensor


class PenaltyTexts:
    """The texts, `_tokens` int64 [rows, longest]; an id beyond the vocabulary is the vocabulary's
    size, a column that is added to the logits for the while and dropped."""

    def __init__(self, vocab_size: int, *, longest: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self._tokens = torch.zeros(0, longest, dtype=torch.int64, device=device)
        self._rows: dict[str, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def begin(self, request_id: str, prompt_ids: Sequence[int]) -> None:
        """Take a new request's prompt; a request that is known keeps its text."""
        if request_id in self._rows:
            return
        if not self._free:
            self._grow()
        row = self._rows[request_id] = self._free.pop()
        ids = np.asarray(prompt_ids, dtype=np.int64)
        # An id beyond the vocabulary stands for something a plugin put into the prompt.
        ids = np.where((ids >= 0) & (ids < self.vocab_size), ids, self.vocab_size)
        self._tokens[row].fill_(self.vocab_size)
        self._tokens[row, : len(ids)] = self._there(ids)

    def end(self, request_id: str) -> None:
        """Give a request's row back, if it has one."""
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._free.append(row)

    def rows_of(self, request_ids: Sequence[str]) -> Tensor:
        """The rows of requests that began, int64 [n]."""
        rows = [self._rows[request_id] for request_id in request_ids]
        return self._there(np.array(rows, dtype=np.int64))

    def add(self, rows: Tensor, places: Tensor, *, tokens: Tensor) -> None:
        """Write one token of each row at its place in the text, int64 [n] all."""
        self._tokens[rows, places] = tokens

    def apply(self, logits: Tensor, penalised: Penalised) -> Tensor:
        """Return penalised logits float32 [n, vocab]."""
        wide = torch.nn.functional.pad(logits, (0, 1))
        repetition, frequency, presence = penalised.strengths.unbind(0)
        seen = self._span(penalised, np.zeros_like(penalised.lengths))
        found = wide.gather(1, seen)
        repetition = repetition.clamp(min=SMALLEST_REPETITION)
        # A token that stands several times in the text gets the same value several times.
        wide.scatter_(1, seen, torch.where(found > 0, found / repetition, found * repetition))
        said = self._span(penalised, penalised.prompt_lengths)
        if said.shape[1]:
            wide.scatter_add_(1, said, -frequency.expand(said.shape))
            wide.scatter_(1, said, wide.gather(1, said) - presence)
        return wide[:, : self.vocab_size]

    def _span(self, penalised: Penalised, starts: Ints) -> Tensor:
        """The tokens from `starts` to the texts' ends, int64 [n, most], padded."""
        counts = penalised.lengths - starts
        steps = np.arange(counts.max(initial=0))
        places = np.minimum(starts[:, None] + steps, self._tokens.shape[1] - 1)
        is_there = self._there(steps < counts[:, None])
        found = self._tokens[penalised.rows.unsqueeze(1), self._there(places)]
        return torch.where(is_there, found, self.vocab_size)

    def _there(self, values: npt.NDArray[np.generic]) -> Tensor:
        return placed(values, self._tokens.device)

    def _grow(self) -> None:
        old = self._tokens.shape[0]
        larger = self._tokens.new_empty(max(FIRST_ROWS, 2 * old), self._tokens.shape[1])
        larger[:old] = self._tokens
        self._tokens = larger
        self._free.extend(reversed(range(old, larger.shape[0])))
