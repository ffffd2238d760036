# SPDX-License-Identifier: MIT
"""Streamed text is the whole text: no split characters, no leaked stop strings."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenspeed_core.models.detokenizer import Detokenizer
from tokenspeed_core.models.errors import TextError
from tokenspeed_core.models.resolve import ModelFolder
from tokenspeed_core.models.stop_strings import StopStrings
from tokenspeed_core.models.tokenizer import Tokenizer

SCRIPTS = (
    "你好世界今天天气怎么样日本語漢字",
    "ひらがなカタカナ",
    "안녕하세요한국어음절",
    "😀🎉👍🏽👨‍👩‍👧‍👦🇫🇷❤️🏳️‍🌈",
    "e\u0301a\u0308n\u0303o\u0327\u20e3",
    "नमस्ते दुनिया สวัสดี",
    "plain words, 123 ",
)


@pytest.fixture(scope="module")
def tokenizer(default_model: ModelFolder) -> Tokenizer:
    """The default model's tokenizer."""
    return default_model.load_tokenizer()


def streamed(detokenizer: Detokenizer, token_ids: list[int], chunk: int) -> list[str]:
    """Push tokens a chunk at a time; return the deltas, the flush included."""
    starts = range(0, len(token_ids), chunk)
    return [*(detokenizer.push(token_ids[i : i + chunk]) for i in starts), detokenizer.flush()]


def test_streamed_characters_stay_whole(tokenizer: Tokenizer) -> None:
    """Joined deltas of 1,000 CJK, emoji and combining strings are the strings, in any chunks."""
    draw = random.Random(12630)
    for number in range(1000):
        script = draw.choice(SCRIPTS) + draw.choice(SCRIPTS)
        text = "".join(draw.choices(script, k=draw.randint(1, 24)))
        ids = tokenizer.encode(text)
        deltas = streamed(tokenizer.detokenizer(), ids, chunk=number % 8 + 1)
        assert "".join(deltas) == text == tokenizer.decode(ids)
        assert not any("\ufffd" in delta for delta in deltas)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 49151), max_size=30), st.integers(1, 8), st.booleans())
def test_any_tokens_in_any_chunks(
    tokenizer: Tokenizer, ids: list[int], chunk: int, skip_special: bool
) -> None:
    """For any tokens of the vocabulary joined deltas equal the decoding of the whole."""
    deltas = streamed(tokenizer.detokenizer(skip_special=skip_special), ids, chunk)
    whole = b"".join(
        tokenizer.token_bytes(i) for i in ids if not (skip_special and i in tokenizer.special_ids)
    )
    assert "".join(deltas) == whole.decode(errors="replace")


def test_unfinished_character_is_held(tokenizer: Tokenizer) -> None:
    """No delta comes before a character is whole; at the end it becomes one mark."""
    ids = tokenizer.encode("한")
    assert len(ids) > 1
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.push([i]) for i in ids[:-1]] == [""] * (len(ids) - 1)
    assert detokenizer.flush() == "\ufffd"


def test_special_tokens_can_be_shown(tokenizer: Tokenizer) -> None:
    """Special tokens add their names only where they are asked for."""
    ids = tokenizer.encode("hi<|im_end|>")
    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.decode(ids, skip_special=False) == "hi<|im_end|>"


def test_stop_string_over_token_borders(tokenizer: Tokenizer) -> None:
    """Nothing of a stop string built up over several tokens gets out, nor what follows it."""
    pieces = [tokenizer.encode(piece) for piece in ("ABC", "DEF", "G", "HI", "J", "KLM")]
    detokenizer = tokenizer.detokenizer(stops=["DEFGHIJ"])
    assert [detokenizer.push(ids) for ids in pieces] == ["ABC", "", "", "", "", ""]
    assert (detokenizer.flush(), detokenizer.matched) == ("", "DEFGHIJ")


def test_near_miss_is_released(tokenizer: Tokenizer) -> None:
    """Text held back for a stop string comes out as soon as it cannot become one."""
    pieces = [tokenizer.encode(piece) for piece in ("ABC", "DEF", "G", "HI", "K")]
    detokenizer = tokenizer.detokenizer(stops=["DEFGHIJ"])
    assert [detokenizer.push(ids) for ids in pieces] == ["ABC", "", "", "", "DEFGHIK"]
    assert (detokenizer.flush(), detokenizer.matched) == ("", None)


def test_held_text_comes_at_the_end(tokenizer: Tokenizer) -> None:
    """Half a stop string at the end of the text is text."""
    detokenizer = tokenizer.detokenizer(stops=["DEFGHIJ"])
    assert detokenizer.push(tokenizer.encode("ABCDEF")) == "ABC"
    assert detokenizer.flush() == "DEF"


def test_stop_string_of_half_a_character(tokenizer: Tokenizer) -> None:
    """A stop string of a character that takes several tokens is met when it is whole."""
    detokenizer = tokenizer.detokenizer(stops=["한"])
    deltas = streamed(detokenizer, tokenizer.encode("가한국"), chunk=1)
    assert ("".join(deltas), detokenizer.matched) == ("가", "한")


STOPS = [
    ("abcd", ["bcd", "c"], "ab", "c"),
    ("xabc", ["bc", "abc"], "x", "abc"),
    ("aab", ["ab"], "a", "ab"),
    ("ababac", ["abac"], "ab", "abac"),
    ("stop", ["stop"], "", "stop"),
    ("no", ["stop"], "no", None),
]


@pytest.mark.parametrize("chunk", [1, 2, 3, 8])
@pytest.mark.parametrize(("text", "stops", "expected", "matched"), STOPS)
def test_first_complete_stop_wins(
    text: str, stops: list[str], expected: str, matched: str | None, chunk: int
) -> None:
    """The stop string that is complete first decides, however the text is chopped up."""
    filter_ = StopStrings(stops)
    parts = [filter_.push(text[i : i + chunk]) for i in range(0, len(text), chunk)]
    assert "".join(parts) + filter_.flush() == expected
    assert filter_.matched == matched


@settings(derandomize=True, max_examples=400, deadline=None)
@given(
    st.text("ab", max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.integers(1, 6),
)
def test_chunks_do_not_move_the_cut(text: str, stops: list[str], chunk: int) -> None:
    """Any chunking gives the same text and the same match, and no stop string gets out."""
    whole, parts = StopStrings(stops), StopStrings(stops)
    expected = whole.push(text) + whole.flush()
    pushed = [parts.push(text[i : i + chunk]) for i in range(0, len(text), chunk)]
    assert "".join(pushed) + parts.flush() == expected
    assert parts.matched == whole.matched
    assert not any(stop in expected for stop in stops)


def test_empty_stop_string_is_refused() -> None:
    """An empty stop string would end every text at once."""
    with pytest.raises(TextError, match="must not be empty"):
        StopStrings(["x", ""])


def test_bytes_of_a_split_character(tokenizer: Tokenizer) -> None:
    """The true bytes of one emoji's tokens make up the emoji."""
    ids = tokenizer.encode("🏳")
    assert len(ids) > 1
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == "🏳".encode()
