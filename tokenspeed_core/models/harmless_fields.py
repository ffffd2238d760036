# SPDX-License-Identifier: MIT
"""Fields of a config.json that have no say in the forward pass."""

from __future__ import annotations

BOOKKEEPING = frozenset(
    {
        "architectures",
        "finetuning_task",
        "id2label",
        "is_llama_config",
        "label2id",
        "model_type",
        "prefix",
        "problem_type",
        "task_specific_params",
        "tokenizer_class",
        "transformers.js_config",
        "transformers_version",
    }
)
TRAINING_AND_OUTPUT = frozenset(
    {
        "initializer_range",
        "max_window_layers",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "use_cache",
    }
)
# Older files carry the defaults of generation, which a request states for itself.
GENERATION = frozenset(
    {
        "cls_token_id",
        "decoder_start_token_id",
        "diversity_penalty",
        "encoder_no_repeat_ngram_size",
        "length_penalty",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "pad_token_id",
        "repetition_penalty",
        "sep_token_id",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    }
)
HARMLESS = BOOKKEEPING | TRAINING_AND_OUTPUT | GENERATION
QUIET_STARTS = ("_", "unsloth_")
QUIET_ENDS = ("dropout", "_pdrop")


def is_harmless(name: str, value: object) -> bool:
    """Say whether a field may be passed over: it is known not to matter, or switched off."""
    if name in HARMLESS or name.startswith(QUIET_STARTS) or name.endswith(QUIET_ENDS):
        return True
    return value is None or value is False or value in ("", [], {})
