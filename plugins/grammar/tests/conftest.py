# SPDX-License-Identifier: MIT
"""What these tests share: a vocabulary of bytes, and the default backend over it."""

from __future__ import annotations

import pytest

from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_grammar.backend import BackendSettings, Vocabulary
from tokenspeed_grammar.llguidance_backend import LLGuidanceBackend
from tokenspeed_grammar.testing import CacheBench

VOCAB = 320


@pytest.fixture
def bench() -> CacheBench:
    """A cache that knows nothing."""
    return CacheBench()


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """The bytes, some numbers as words, and two special tokens, of which the last one ends."""
    return Vocabulary(small_tokenizer(vocab_size=VOCAB), VOCAB, (VOCAB - 1,))


@pytest.fixture(scope="session")
def backend(vocabulary: Vocabulary) -> LLGuidanceBackend:
    """The default backend over that vocabulary."""
    return LLGuidanceBackend(vocabulary, BackendSettings())
