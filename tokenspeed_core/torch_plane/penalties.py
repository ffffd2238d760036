# SPDX-License-Identifier: MIT
"""Repetition, frequency and presence penalties, from what each request has seen and said.

The counts belong to requests, not to slots, so a retraction leaves them where they are. Nothing is
allocated before the first request with a penalty comes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FIRST_ROWS = 8
# Keeps a repetition penalty of zero from dividing by it.
SMALLEST_REPETITION = 1e-6


class PenaltyCounts:
    """A row a request with penalties: `_said` int32 [rows, vocab], `_prompt` bool [rows, vocab]."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._said = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._prompt = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._rows: dict[str, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def begin(self, request_id: str, prompt_ids: Sequence[int]) -> None:
        """Count a new request's prompt; a request that is known keeps its counts."""
        if request_id in self._rows:
            return
        if not self._free:
            self._grow()
        row = self._rows[request_id] = self._free.pop()
        self._said[row].zero_()
        self._prompt[row].zero_()
        ids = torch.tensor(list(prompt_ids), dtype=torch.int64, device=self._prompt.device)
        # An id beyond the vocabulary stands for something a plugin put into the prompt.
        self._prompt[row].index_fill_(0, ids[(ids >= 0) & (ids < self._prompt.shape[1])], True)

    def end(self, request_id: str) -> None:
        """Give a request's row back, if it has one."""
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._free.append(row)

    def rows_of(self, request_ids: Sequence[str]) -> Tensor:
        """The rows of requests that began, int64 [n]."""
        rows = [self._rows[request_id] for request_id in request_ids]
        return torch.tensor(rows, dtype=torch.int64, device=self._said.device)

    def add(self, rows: Tensor, tokens: Tensor) -> None:
        """Count one more token of each row, int64 [n] both."""
        ones = torch.ones_like(rows, dtype=torch.int32)
        self._said.index_put_((rows, tokens), ones, accumulate=True)

    def apply(self, logits: Tensor, rows: Tensor, *, strengths: Tensor) -> Tensor:
        """Return penalised logits float32 [n, vocab].

        `strengths` float32 [3, n, 1] holds the repetition, frequency and presence penalties.
        """
        repetition = strengths[0].clamp(min=SMALLEST_REPETITION)
        said = self._said[rows]
        seen = self._prompt[rows] | (said > 0)
        scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(seen, scaled, logits)
        return logits - strengths[1] * said - strengths[2] * (said > 0)

    def _grow(self) -> None:
        old = self._said.shape[0]
        new = max(FIRST_ROWS, 2 * old)
        self._said = _enlarged(self._said, new)
        self._prompt = _enlarged(self._prompt, new)
        self._free.extend(reversed(range(old, new)))


def _enlarged(table: Tensor, rows: int) -> Tensor:
    larger = table.new_empty(rows, table.shape[1])
    larger[: table.shape[0]] = table
    return larger
