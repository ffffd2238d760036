# SPDX-License-Identifier: MIT
"""From logits to one token a row.

Greedy rows without any shaping, the usual ones, are answered by one pass over the logits as they
are. The other rows are copied to float32 and go through penalties, bias, barred endings,
temperature and filters, in that order, each with its own request's parameters. Nothing a row goes
through looks at another row, so a request gets the same tokens in any company.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen
from torch import Tensor

from tokenspeed_core.torch_plane.device import placed
from tokenspeed_core.torch_plane.draws import best_tokens, drawn_tokens
from tokenspeed_core.torch_plane.filters import Filters, least_probabilities
from tokenspeed_core.torch_plane.penalties import Penalised, PenaltyTexts
from tokenspeed_core.torch_plane.randomness import uniforms
from tokenspeed_core.torch_plane.seated import Columns, SeatedRequest

Places = npt.NDArray[np.int64]


@frozen(eq=False)
class SamplingRows:
    """The rows of one forward, in batch order: their requests, their columns (gathered after the
    forward's inputs were counted), which of them sample (no mid-chunk rows), and the last token
    that was sampled elsewhere and given with the row, -1 for none."""

    requests: Sequence[SeatedRequest]
    columns: Columns
    samples: npt.NDArray[np.bool_]
    given: Places

    def take(self, places: Places) -> SamplingRows:
        """Some of the rows."""
        requests = [self.requests[place] for place in places.tolist()]
        return SamplingRows(
            requests, self.columns[places], self.samples[places], self.given[places]
        )

    @property
    def output_index(self) -> npt.NDArray[np.int64]:
        """How many tokens the request has before this row's."""
        index: npt.NDArray[np.int64] = self.columns["length"] - self.columns["prompt_length"]
        return index

    @property
    def bars_endings(self) -> npt.NDArray[np.bool_]:
        """Rows that may not end yet."""
        bars: npt.NDArray[np.bool_] = self.output_index < self.columns["min_new_tokens"]
        return bars


@frozen(eq=False)
class Sampled:
    """A token a row, int64 [rows], and whether its logits could not be sampled, bool [rows]."""

    tokens: Tensor
    is_bad: Tensor


class Sampler:
    """Samples the rows of a forward; owns the texts that penalties are computed from."""

    def __init__(self, vocab_size: int, *, longest: int, device: torch.device) -> None:
        self._device = device
        self._vocab_size = vocab_size
        self.texts = PenaltyTexts(vocab_size, longest=longest, device=device)

    def begin(self, request: SeatedRequest) -> None:
        """Take note of a request that was seated."""
        if request.columns["has_penalties"]:
            self.texts.begin(request.request_id, request.prompt_ids)

    def end(self, request_id: str) -> None:
        """Forget a request."""
        self.texts.end(request_id)

    def sample(self, logits: Tensor, rows: SamplingRows) -> Sampled:
        """Sample from logits [rows, vocab]; tokens of rows that sample nothing mean nothing."""
        shaped = np.flatnonzero(rows.samples & _needs_shaping(rows))
        if shaped.size == len(rows.requests):
            return self._sample_shaped(logits.to(torch.float32, copy=True), rows)
        tokens, best = best_tokens(logits)
        # A best value that is NaN or infinite: NaN logits, or a row in which all is barred.
        found = Sampled(tokens, ~best.isfinite())
        if shaped.size:
            where = self._tensor(shaped)
            some = self._sample_shaped(logits[where].float(), rows.take(shaped))
            found.tokens[where], found.is_bad[where] = some.tokens, some.is_bad
        return found

    def _sample_shaped(self, logits: Tensor, rows: SamplingRows) -> Sampled:
        logits = self._shape(logits, rows)
        is_greedy = rows.columns["is_greedy"]
        if is_greedy.all():
            tokens, best = best_tokens(logits)
            found = Sampled(tokens, ~best.isfinite())
        elif not is_greedy.any():
            found = self._draw(logits, rows)
        else:
            found = self._sample_mixed(logits, rows)
        self._note(found.tokens, rows)
        return found

    def _sample_mixed(self, logits: Tensor, rows: SamplingRows) -> Sampled:
        tokens, best = best_tokens(logits)
        found = Sampled(tokens, ~best.isfinite())
        random = np.flatnonzero(~rows.columns["is_greedy"])
        where = self._tensor(random)
        drawn = self._draw(logits[where], rows.take(random))
        found.tokens[where], found.is_bad[where] = drawn.tokens, drawn.is_bad
        return found

    def _shape(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        """Penalties, bias, barred endings on float32 logits that may be written to."""
        for places in _where(rows.columns["has_penalties"]):
            where, some = self._tensor(places), rows.take(places)
            self._note_given(some)
            logits[where] = self.texts.apply(logits[where], self._penalised(some))
        self._add_bias(logits, rows)
        self._bar_endings(logits, rows)
        return logits

    def _penalised(self, rows: SamplingRows) -> Penalised:
        columns = rows.columns
        strengths = [columns[name] for name in ("repetition", "frequency", "presence")]
        return Penalised(
            self._text_rows(rows),
            columns["length"],
            columns["prompt_length"],
            strengths=self._tensor(np.stack(strengths)[..., None]),
        )

    def _add_bias(self, logits: Tensor, rows: SamplingRows) -> None:
        for biased in _where(rows.columns["has_bias"]):
            ids = [rows.requests[place].bias_ids for place in biased.tolist()]
            values = [rows.requests[place].bias_values for place in biased.tolist()]
            index = (self._repeated(biased, ids), self._tensor(np.concatenate(ids)))
            logits.index_put_(index, self._tensor(np.concatenate(values)), accumulate=True)

    def _bar_endings(self, logits: Tensor, rows: SamplingRows) -> None:
        for places in _where(rows.bars_endings):
            ids = [rows.requests[place].ending_ids for place in places.tolist()]
            where = self._tensor(places)
            free = logits[where]
            index = (self._repeated(np.arange(len(ids)), ids), self._tensor(np.concatenate(ids)))
            barred = free.index_put(index, free.new_full((), -torch.inf))
            # Where an extension left nothing but endings, the text can only end.
            is_stuck = (barred.amax(dim=-1) == -torch.inf).unsqueeze(-1)
            logits[where] = torch.where(is_stuck, free, barred)

    def _draw(self, logits: Tensor, rows: SamplingRows) -> Sampled:
        """Draw from float32 logits that may be written to."""
        columns = rows.columns
        logits.div_(self._tensor(columns["temperature"]).unsqueeze(-1))
        probabilities = torch.softmax(logits, dim=-1)
        self._filter(probabilities, columns)
        numbers = uniforms(columns["seed"], rows.output_index)
        return Sampled(*drawn_tokens(probabilities, self._tensor(numbers)))

    def _filter(self, probabilities: Tensor, columns: Columns) -> None:
        """Set to zero, in place, what the rows' filters leave out."""
        vocab = self._vocab_size
        top_k = np.where(columns["top_k"] > 0, np.minimum(columns["top_k"], vocab), vocab)
        is_filtered = (top_k < vocab) | (columns["top_p"] < 1) | (columns["min_p"] > 0)
        for places in _where(is_filtered):
            where = self._tensor(places)
            some = probabilities if places.size == len(columns) else probabilities[where]
            filters = Filters(
                self._tensor(top_k[places]),
                self._tensor(columns["top_p"][places]),
                self._tensor(columns["min_p"][places]),
            )
            some.masked_fill_(some < least_probabilities(some, filters), 0)
            if some is not probabilities:
                probabilities[where] = some

    def _note_given(self, rows: SamplingRows) -> None:
        """Add tokens that were sampled elsewhere to the texts."""
        for places in _where(rows.given >= 0):
            some = rows.take(places)
            at, tokens = self._tensor(some.columns["length"] - 1), self._tensor(some.given)
            self.texts.add(self._text_rows(some), at, tokens=tokens)

    def _note(self, tokens: Tensor, rows: SamplingRows) -> None:
        """Add the tokens to the texts of rows with penalties."""
        for places in _where(rows.columns["has_penalties"]):
            some = rows.take(places)
            at = self._tensor(some.columns["length"])
            self.texts.add(self._text_rows(some), at, tokens=tokens[self._tensor(places)])

    def _text_rows(self, rows: SamplingRows) -> Tensor:
        return self.texts.rows_of([request.request_id for request in rows.requests])

    def _repeated(self, places: Places, ids: Sequence[Places]) -> Tensor:
        return self._tensor(np.repeat(places, [len(part) for part in ids]))

    def _tensor(self, values: npt.NDArray[np.generic]) -> Tensor:
        return placed(values, self._device)


def _needs_shaping(rows: SamplingRows) -> npt.NDArray[np.bool_]:
    c = rows.columns
    shaping: npt.NDArray[np.bool_] = (
        ~c["is_greedy"] | c["has_penalties"] | c["has_bias"] | rows.bars_endings
    )
    return shaping


def _where(mask: npt.NDArray[np.bool_]) -> list[Places]:
    """The places of a mask as one array, or nothing at all."""
    places = np.flatnonzero(mask)
    return [places] if places.size else []
