# SPDX-License-Identifier: MIT
"""The flags that say how tokens are drawn."""

from __future__ import annotations

import argparse

from tokenspeed_core.errors import ConfigError
from tokenspeed_hookspecs import SamplingParams


def add_sampling_flags(parser: argparse.ArgumentParser, *, max_tokens: int) -> None:
    """Add a flag for each field of SamplingParams a person may want."""
    group = parser.add_argument_group("sampling")
    for flag, kind, default, words in (
        ("max-tokens", int, max_tokens, "most tokens of an answer"),
        ("min-tokens", int, 0, "fewest tokens of an answer"),
        ("temperature", float, 0.0, "0 always takes the likeliest token"),
        ("top-k", int, -1, "draw from so many of the likeliest tokens; -1 is off"),
        ("top-p", float, 1.0, "draw from the likeliest tokens that sum to this probability"),
        ("min-p", float, 0.0, "draw from tokens at least this likely, relative to the likeliest"),
        ("frequency-penalty", float, 0.0, "for each time a token was said"),
        ("presence-penalty", float, 0.0, "for tokens that were said at all"),
        ("repetition-penalty", float, 1.0, "divides the logits of tokens seen before"),
        ("seed", int, None, "draw the same again; the request's own without it"),
    ):
        shown = "" if default is None else f" ({default})"
        group.add_argument(f"--{flag}", type=kind, default=default, metavar="N", help=words + shown)
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before it; may be repeated"
    )
    group.add_argument(
        "--stop-token-id", action="append", type=int, default=[], metavar="ID", help="end with it"
    )
    group.add_argument(
        "--logit-bias",
        action="append",
        default=[],
        metavar="ID:BIAS",
        help="add to a token's logit; may be repeated",
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on after the end of text")


def sampling_of(given: argparse.Namespace) -> SamplingParams:
    """What the flags of `add_sampling_flags` said."""
    return SamplingParams(
        max_new_tokens=given.max_tokens,
        min_new_tokens=given.min_tokens,
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        min_p=given.min_p,
        frequency_penalty=given.frequency_penalty,
        presence_penalty=given.presence_penalty,
        repetition_penalty=given.repetition_penalty,
        logit_bias=dict(_bias(text) for text in given.logit_bias) or None,
        stop=tuple(given.stop),
        stop_token_ids=tuple(given.stop_token_id),
        ignore_eos=given.ignore_eos,
        seed=given.seed,
    )


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition(":")
    try:
        return int(token), float(bias)
    except ValueError:
        raise ConfigError(
            [f"--logit-bias: expected ID:BIAS, such as 42:-1.5, got {text!r}"]
        ) from None
