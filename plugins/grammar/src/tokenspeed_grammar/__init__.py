# SPDX-License-Identifier: MIT
"""Structured output: a request's text follows its grammar, token by token."""
