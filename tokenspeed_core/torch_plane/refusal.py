# SPDX-License-Identifier: MIT
"""What a control operation raises when it does nothing, and says why."""

from __future__ import annotations


class RefusedError(Exception):
    """The operation is not carried out and nothing is changed; the message is for the operator."""
