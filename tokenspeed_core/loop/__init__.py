# SPDX-License-Identifier: MIT
"""The scheduling loop of one rank: the order of things, and nothing else."""
