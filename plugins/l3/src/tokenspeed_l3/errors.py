# SPDX-License-Identifier: MIT
"""What goes wrong between ranks or at the start. What a store does wrong is a `StoreError`."""

from __future__ import annotations


class L3Error(Exception):
    """The tier cannot start, or the ranks do not agree; the engine ends and says so."""
