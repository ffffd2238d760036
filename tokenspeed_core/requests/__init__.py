# SPDX-License-Identifier: MIT
"""Each request from its arrival to its last output."""
