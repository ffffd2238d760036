# SPDX-License-Identifier: MIT
"""Texts fed to a decoder in chunks and steps, over scattered pages full of garbage."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from tokenspeed_core.torch_plane.decoder import Decoder
from tokenspeed_core.torch_plane.inputs import ForwardInputs
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache

PAGE_SIZE = 4


@define(eq=False)
class Text:
    """One request: its pages in order, how much of it is cached."""

    pages: list[int] = field(factory=list)
    cached: int = 0


@define(eq=False)
class PagedTexts:
    """A decoder, its cache, and pages handed out in random order; all start as `garbage`."""

    decoder: Decoder
    cache: PagedKVCache
    _free: list[int]

    @classmethod
    def over(
        cls, decoder: Decoder, *, num_pages: int = 200, garbage: float = float("nan"), seed: int = 0
    ) -> PagedTexts:
        """Texts over a fresh cache."""
        cache = PagedKVCache(
            decoder.config,
            num_pages,
            page_size=PAGE_SIZE,
            dtype=decoder.dtype,
            device=decoder.device,
        )
        cache.pages.fill_(garbage)
        free = list(range(1, num_pages))
        random.Random(seed).shuffle(free)
        return cls(decoder, cache, free)

    def page(self) -> int:
        """A page that nobody holds."""
        return self._free.pop()

    def free(self, text: Text) -> None:
        """Give a request's pages back, to be handed out again first; their contents stay."""
        self._free.extend(text.pages)
        text.pages = []

    def feed(
        self, chunks: Sequence[tuple[Text, Sequence[int]]], *steps: tuple[Text, int]
    ) -> Tensor:
        """One forward of prompt chunks and decode rows; logits of every fed token, in order."""
        inputs = self.inputs(chunks, *steps)
        return self.decoder.forward(inputs, self.cache)

    def inputs(
        self, chunks: Sequence[tuple[Text, Sequence[int]]], *steps: tuple[Text, int]
    ) -> ForwardInputs:
        """The inputs of that forward; the texts count as fed."""
        rows = [*chunks, *((text, [token]) for text, token in steps)]
        positions = [p for text, fed in rows for p in range(text.cached, text.cached + len(fed))]
        for text, fed in rows:
            self._extend(text, len(fed))
        tokens = [token for _, fed in rows for token in fed]
        device = self.decoder.device
        return ForwardInputs(
            token_ids=torch.tensor(tokens, device=device),
            positions=torch.tensor(positions, device=device),
            row_lengths=[len(fed) for _, fed in rows],
            context_lengths=[text.cached for text, _ in rows],
            num_extends=len(chunks),
            block_table=_table([text.pages for text, _ in rows]),
            logit_rows=torch.arange(len(tokens), device=device),
        )

    def _extend(self, text: Text, count: int) -> None:
        text.cached += count
        while len(text.pages) * PAGE_SIZE < text.cached:
            text.pages.append(self.page())


def _table(pages: Sequence[Sequence[int]]) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """A block table two pages wider than needed, the null page where a row has none."""
    table = np.zeros((len(pages), max(map(len, pages)) + 2), dtype=np.int32)
    for row, row_pages in enumerate(pages):
        table[row, : len(row_pages)] = row_pages
    return table
