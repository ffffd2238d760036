# SPDX-License-Identifier: MIT
"""The real loop and scheduler on ranks that run one at a time, from a seed, with faults."""
