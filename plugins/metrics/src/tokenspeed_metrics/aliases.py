# SPDX-License-Identifier: MIT
"""The same values under other engines' names, so that dashboards made for those work.

Data, not code: a name that changes there is a line here. Histograms have those engines' buckets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen

Sample = tuple[str, Mapping[str, str], float]


@frozen
class Alias:
    """Another name for the series of `source`, in other `buckets` if it has some.

    `only` picks series by label values, which are then left out; `renamed` changes label names.
    """

    name: str
    source: str
    meaning: str = ""
    buckets: tuple[float, ...] = field(default=(), kw_only=True)
    only: Mapping[str, str] = field(factory=dict, kw_only=True)
    renamed: Mapping[str, str] = field(factory=dict, kw_only=True)

    def pick(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples of the source that this name has, with its labels."""
        return [
            (suffix, self._labels(labels), value)
            for suffix, labels, value in samples
            if all(labels.get(key) == wanted for key, wanted in self.only.items())
        ]

    def _labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        kept = {key: value for key, value in labels.items() if key not in self.only}
        return {self.renamed.get(key, key): value for key, value in kept.items()}


_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40),
    *(80, 160, 640, 2560),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40),
    80,
)
_LONG = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920),
    7680,
)
_SGLANG_TTFT = (
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100),
    *(200, 400),
)
_SGLANG_BETWEEN = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1),
    *(0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
_SGLANG_E2E = (
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1,
    2,
    4,
    6,
    8,
    10,
    20,
    40,
    60,
    80,
    100,
    200,
    400,
    600,
    1200,
    1800,
    2400,
)
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_RATIO = "Share of pages that running requests hold; a ratio from 0 to 1."

ALIASES: Mapping[str, Sequence[Alias]] = {
    "vllm": (
        Alias("vllm:num_requests_running", "num_requests_running"),
        Alias("vllm:num_requests_waiting", "num_requests_waiting"),
        Alias("vllm:kv_cache_usage_perc", "kv_cache_usage_perc", _RATIO),
        Alias("vllm:gpu_cache_usage_perc", "kv_cache_usage_perc", _RATIO),
        Alias("vllm:prefix_cache_queries", "prefix_cache_queries"),
        Alias("vllm:prefix_cache_hits", "prefix_cache_hits"),
        Alias("vllm:num_preemptions", "num_preemptions"),
        Alias("vllm:prompt_tokens", "prompt_tokens"),
        Alias("vllm:generation_tokens", "generation_tokens"),
        Alias("vllm:request_success", "num_requests_ended", renamed={"reason": "finished_reason"}),
        Alias("vllm:iteration_tokens_total", "iteration_tokens_total", buckets=_ITERATION),
        Alias("vllm:time_to_first_token_seconds", "time_to_first_token_seconds", buckets=_TTFT),
        Alias(
            "vllm:time_per_output_token_seconds", "inter_token_latency_seconds", buckets=_PER_TOKEN
        ),
        Alias(
            "vllm:inter_token_latency_seconds", "inter_token_latency_seconds", buckets=_PER_TOKEN
        ),
        Alias("vllm:e2e_request_latency_seconds", "e2e_request_latency_seconds", buckets=_LONG),
        Alias("vllm:request_queue_time_seconds", "request_queue_time_seconds", buckets=_LONG),
        Alias(
            "vllm:request_inference_time_seconds", "request_inference_time_seconds", buckets=_LONG
        ),
        Alias("vllm:request_prefill_time_seconds", "request_prefill_time_seconds", buckets=_LONG),
        Alias("vllm:request_decode_time_seconds", "request_decode_time_seconds", buckets=_LONG),
        Alias("vllm:request_prompt_tokens", "request_prompt_tokens"),
        Alias("vllm:request_generation_tokens", "request_generation_tokens"),
        # Each choice of a prompt is a request of its own here: its most is its only one.
        Alias("vllm:request_max_num_generation_tokens", "request_generation_tokens"),
        Alias("vllm:request_params_max_tokens", "request_max_new_tokens"),
    ),
    "sglang": (
        Alias(
            "sglang:num_running_reqs",
            "num_requests_running",
            "Requests being prefilled or decoded; there, those of the running batch.",
        ),
        Alias("sglang:num_queue_reqs", "num_requests_waiting"),
        Alias("sglang:token_usage", "kv_cache_usage_perc", _RATIO),
        Alias("sglang:cached_tokens", "prefix_cache_hits"),
        Alias("sglang:cache_hit_rate", "prefix_cache_hit_rate"),
        Alias("sglang:prompt_tokens", "prompt_tokens"),
        Alias("sglang:generation_tokens", "generation_tokens"),
        Alias("sglang:num_requests", "num_requests"),
        Alias("sglang:num_so_requests", "grammar_requests"),
        Alias("sglang:num_aborted_requests", "num_requests_ended", only={"reason": "abort"}),
        Alias(
            "sglang:time_to_first_token_seconds",
            "time_to_first_token_seconds",
            buckets=_SGLANG_TTFT,
        ),
        Alias(
            "sglang:inter_token_latency_seconds",
            "inter_token_latency_seconds",
            buckets=_SGLANG_BETWEEN,
        ),
        Alias(
            "sglang:e2e_request_latency_seconds",
            "e2e_request_latency_seconds",
            buckets=_SGLANG_E2E,
        ),
    ),
}


def beside(aliases: Sequence[Alias]) -> dict[str, tuple[float, ...]]:
    """The bounds that each source has to count besides its own."""
    found: dict[str, tuple[float, ...]] = {}
    for alias in aliases:
        found[alias.source] = (*found.get(alias.source, ()), *alias.buckets)
    return found
