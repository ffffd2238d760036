# SPDX-License-Identifier: MIT
"""Rounds for the Perfetto viewer: a plugin that is built in and loaded where it is asked for."""
