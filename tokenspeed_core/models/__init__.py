# SPDX-License-Identifier: MIT
"""From a model's name to its configuration, weights, tokenizer and chat template."""
