# SPDX-License-Identifier: MIT
"""The checks as tests: inherit them, and name the plugin.

class TestMine(PluginContract):
    plugin = MyPlugin
    features = ({"mine": "a value that my plugin acts on"},)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tokenspeed_core.testing.conformance.checks import State, check_named
from tokenspeed_core.testing.conformance.subject import Features, Subject
from tokenspeed_hookspecs import Plugin


class PluginContract:
    """Subclass it as `TestSomething`, set `plugin`, and pytest runs every check on it.

    `options` are the plugin's own, `features` are those of requests that it acts on, tried in turn
    beside a request without any. So many `seeds` of the simulation are run; `tokenspeed simulate
    --plugin NAME` runs others.
    """

    plugin: ClassVar[type[Plugin]]
    options: ClassVar[Mapping[str, Any]] = {}
    features: ClassVar[Sequence[Features]] = ()
    seeds: ClassVar[int] = 6

    @property
    def subject(self) -> Subject:
        """What is checked."""
        return Subject(
            plugin=self.plugin, options=self.options, features=self.features, seeds=self.seeds
        )

    def test_the_class_is_a_plugin(self) -> None:
        """Its hooks, names and options class are the contract's."""
        self._hold("class")

    def test_importing_it_is_light(self) -> None:
        """Importing its module loads nothing heavy and starts nothing."""
        self._hold("import")

    def test_its_options_come_back(self) -> None:
        """Options come back the same from TOML and from flags."""
        self._hold("options")

    def test_its_commands_need_no_engine(self) -> None:
        """Its commands can be listed without an engine."""
        self._hold("commands")

    def test_ranks_stay_identical(self) -> None:
        """Two mirrored ranks with other hash seeds, clocks and orders have the same rounds."""
        self._hold("ranks")

    def test_requests_run_to_their_end(self) -> None:
        """Requests of every kind end with tokens of their own."""
        self._hold("traffic")

    def test_both_halves_are_there(self) -> None:
        """What hooks attach an extension takes, and the other way round."""
        self._hold("halves")

    def test_tokens_are_tokens(self) -> None:
        """What is sent is inside the vocabulary."""
        self._hold("tokens")

    def test_an_abort_ends_a_request_once(self) -> None:
        """A request ends once, whatever state it is aborted in."""
        self._hold("aborts")

    def test_operations_answer_once(self) -> None:
        """Each of its control operations gives one answer."""
        self._hold("operations")

    def test_drains_drain_and_freezes_freeze(self) -> None:
        """Pauses in each mode, releases and flushes do what they say with requests held."""
        self._hold("pauses")

    def test_an_idle_engine_may_rest(self) -> None:
        """Without requests nothing is busy, blocks a drain or refuses a release."""
        self._hold("idle")

    def test_instances_share_no_state(self) -> None:
        """Two engines in one process have nothing in common that changes."""
        self._hold("sharing")

    def test_stop_leaves_nothing(self) -> None:
        """After stop no thread, descriptor, process, tensor or request is left."""
        self._hold("life")

    def test_an_engine_that_never_starts_leaves_nothing(self) -> None:
        """Composing opens nothing that only stop after a start would close."""
        self._hold("unstarted")

    def test_it_stops_at_any_moment(self) -> None:
        """An engine with requests held stops, and nothing is left."""
        self._hold("stop")

    def test_simulated_ranks_hold(self) -> None:
        """Seeds of ranks, settings, requests, operations and faults; all of what must hold."""
        self._hold("seeds")

    def test_a_raise_is_handled_by_its_mode(self) -> None:
        """A raise in a hook ends the engine by name, or drops the observer."""
        self._hold("failures")

    def _hold(self, name: str) -> None:
        outcome = check_named(name).run(self.subject)
        told = "\n".join(f"- {problem}" for problem in outcome.problems)
        assert outcome.state is State.PASSED, f"plugin {self.subject.name!r}:\n{told}"
