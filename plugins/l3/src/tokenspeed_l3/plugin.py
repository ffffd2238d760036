# SPDX-License-Identifier: MIT
"""The plugin: carries out what the scheduler plans for a store behind the host tier."""

from __future__ import annotations

from tokenspeed_hookspecs import Plugin


class L3(Plugin):
    """Puts prefix pages into a store and fetches them again."""

    name = "l3"
