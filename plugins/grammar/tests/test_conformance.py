# SPDX-License-Identifier: MIT
"""What every plugin must do."""

from __future__ import annotations

from tokenspeed_core.testing.conformance.contract import PluginContract
from tokenspeed_grammar.plugin import GrammarPlugin
from tokenspeed_grammar.samples import features


class TestGrammar(PluginContract):
    """The plugin, with requests that follow grammars."""

    plugin = GrammarPlugin
    features = features()
