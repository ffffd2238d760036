# SPDX-License-Identifier: MIT
"""`tokenspeed generate`, on a little model that says anything."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


def _rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_one_prompt_streams_its_text(run: Run, engine_flags: list[str]) -> None:
    """Standard output holds the text and nothing else; speed and cache go to standard error."""
    ran = run("generate", "Hello", "--max-tokens", "4", "--ignore-eos", *engine_flags)
    row = _rows(
        run("generate", "Hello", "--max-tokens", "4", "--ignore-eos", "--json", *engine_flags).out
    )[0]
    assert (ran.code, ran.out) == (0, row["text"] + "\n")
    assert "5 prompt tokens, 0 of them from the cache; 4 tokens in" in ran.err
    assert "tokens/s" in ran.err


def test_json_is_one_object_a_prompt(run: Run, engine_flags: list[str]) -> None:
    """Each line has text, token ids, finish reason and usage; nothing else is on stdout."""
    flags = ["--max-tokens", "3", "--ignore-eos", "--json", *engine_flags]
    ran = run("generate", "one", "three", *flags)
    rows = _rows(ran.out)
    assert [list(row) for row in rows] == [["text", "token_ids", "finish_reason", "usage"]] * 2
    assert [row["usage"]["prompt_tokens"] for row in rows] == [3, 5]
    assert [len(row["token_ids"]) for row in rows] == [3, 3]
    assert {row["finish_reason"] for row in rows} == {"length"}


def test_a_prompt_said_twice_comes_from_the_cache(run: Run, engine_flags: list[str]) -> None:
    """Usage tells how much of a prompt the prefix cache had."""
    prompts = ["x" * 40] * 2
    flags = ["--max-tokens", "2", "--max-batch-size", "1", "--json", *engine_flags]
    rows = _rows(run("generate", *prompts, *flags).out)
    assert rows[0]["usage"]["cached_tokens"] == 0
    assert rows[1]["usage"]["cached_tokens"] >= 32


@pytest.mark.parametrize("source", ["file", "-"])
def test_prompts_come_from_a_file(
    run: Run, engine_flags: list[str], tmp_path: Path, source: str
) -> None:
    """A file, or standard input, holds a prompt a line; blank lines are passed over."""
    file = tmp_path / "prompts"
    file.write_text("a\n\nbcd\n", encoding="utf-8")
    name = str(file) if source == "file" else "-"
    flags = ["--max-tokens", "1", "--json", *engine_flags]
    ran = run("generate", "--prompts", name, *flags, stdin=file.read_text())
    assert [row["usage"]["prompt_tokens"] for row in _rows(ran.out)] == [1, 3]


def test_several_texts_stand_below_their_prompts(run: Run, engine_flags: list[str]) -> None:
    """Without --json each text follows its prompt, in the order given."""
    ran = run("generate", "one", "two", "--max-tokens", "1", "--ignore-eos", *engine_flags)
    assert [line for line in ran.out.splitlines() if line.startswith("> ")] == ["> one", "> two"]


def test_chat_goes_through_the_template(run: Run, engine_flags: list[str]) -> None:
    """With --chat the model sees the prompt as its chat template writes it."""
    flags = ["--max-tokens", "1", "--json", *engine_flags]
    row = _rows(run("generate", "--chat", "hi", *flags).out)[0]
    assert row["usage"]["prompt_tokens"] == len("user:hi\n")


def test_sampling_flags_reach_the_request(run: Run, engine_flags: list[str]) -> None:
    """A bias of +100 decides the token, and the same seed draws the same."""
    biased = ["--logit-bias", "65:100", "--max-tokens", "3", "--json", *engine_flags]
    assert _rows(run("generate", "x", *biased).out)[0]["text"] == "bbb"
    drawn = ["--temperature", "1.5", "--seed", "7", "--max-tokens", "9", "--json", *engine_flags]
    assert run("generate", "x", *drawn).out == run("generate", "x", *drawn).out


def test_a_stop_string_ends_the_text_before_it(run: Run, engine_flags: list[str]) -> None:
    """The stop string is not part of the text."""
    flags = ["--logit-bias", "65:100", "--stop", "bb", "--max-tokens", "9", "--json"]
    row = _rows(run("generate", "x", *flags, *engine_flags).out)[0]
    assert (row["text"], row["finish_reason"]) == ("", "stop")


def test_a_parameter_out_of_range_is_the_callers_fault(run: Run, engine_flags: list[str]) -> None:
    """A refused request ends the command with code 2 and what is allowed."""
    ran = run("generate", "x", "--top-p", "7", "--json", *engine_flags)
    assert ran.code == 2
    assert "top_p must be in (0, 1], got 7.0" in ran.err
    assert _rows(ran.out)[0]["finish_reason"] == "abort"
    ran = run("generate", "x", "--top-p", "7", *engine_flags)
    told = "tokenspeed: Invalid request: top_p must be in (0, 1], got 7.0.\n"
    assert (ran.out, ran.err) == ("", told)


def test_show_config_can_be_fed_back(run: Run, tmp_path: Path) -> None:
    """The printed configuration, given by --config, prints the same again."""
    flags = ("--page-size", "32", "--batch-log-interval", "9", "--without", "finish_line")
    first = run("generate", "--show-config", *flags)
    file = tmp_path / "engine.toml"
    file.write_text(first.out, encoding="utf-8")
    assert run("generate", "--show-config", "--config", str(file)).out == first.out
    shown = tomllib.loads(first.out)
    assert (shown["scheduler"]["page_size"], shown["batch_log"]["interval"]) == (32, 9)


@pytest.mark.slow
def test_the_default_model_knows_the_capital_of_france(run: Run) -> None:
    """The command of the README answers, with the model a first-time user gets."""
    ran = run("generate", "The capital of France is", "--temperature", "0", "--max-tokens", "8")
    assert "Paris" in ran.out


@pytest.mark.slow
def test_a_question_is_answered_in_english(run: Run) -> None:
    """A chat with the default model stays with its question."""
    question = "Explain in two sentences why the sky is blue."
    ran = run("generate", "--chat", question, "--max-tokens", "48", "--json")
    assert "sky" in _rows(ran.out)[0]["text"]
    assert "blue" in _rows(ran.out)[0]["text"]


def test_a_text_that_was_cut_is_told(run: Run, engine_flags: list[str]) -> None:
    """Fewer tokens than asked for, because no more fit, are named on standard error; code 0."""
    flags = ["--max-tokens", "50", "--ignore-eos", "--max-model-len", "20", *engine_flags]
    ran = run("generate", "one", "seven", *flags)
    assert ran.code == 0
    assert "tokenspeed: prompt 1: ended after 17 of 50 tokens: no more fit" in ran.err
    assert "tokenspeed: prompt 2: ended after 15 of 50 tokens" in ran.err
    whole = run("generate", "one", "--max-tokens", "3", "--ignore-eos", *engine_flags)
    assert "no more fit" not in whole.err


def test_a_refused_prompt_is_named(run: Run, engine_flags: list[str]) -> None:
    """Where there are several, the error says which one it is about; the others are answered."""
    flags = ["--max-tokens", "2", "--ignore-eos", "--max-model-len", "20", *engine_flags]
    ran = run("generate", "one", "x" * 40, *flags)
    assert ran.code == 2
    assert "tokenspeed: prompt 2: " in ran.err
    assert "prompt 1: " not in ran.err
