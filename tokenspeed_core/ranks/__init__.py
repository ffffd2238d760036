# SPDX-License-Identifier: MIT
"""The groups of ranks a loop agrees with."""
