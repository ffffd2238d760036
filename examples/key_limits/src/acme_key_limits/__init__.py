# SPDX-License-Identifier: MIT
"""Priorities and rate limits per API key."""
