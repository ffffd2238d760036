# SPDX-License-Identifier: MIT
"""Plugins that are declared wrongly, share what they should not, or leave something behind."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from collections import deque

import pytest
from attrs import field, frozen

from tokenspeed_core.testing.conformance.checks import State, check_named
from tokenspeed_core.testing.conformance.subject import Subject
from tokenspeed_hookspecs import CliCommand, Engine, Plugin, RequestFlag, Round, hookimpl

SEEN: list[int] = []


class Misnamed(Plugin):
    """A hook that is none."""

    name = "misnamed_hook"

    @hookimpl
    def comitted(self, round: Round) -> None:
        """Never called."""


class Unmarked(Plugin):
    """A hook without its mark."""

    name = "unmarked_hook"

    def committed(self, round: Round) -> None:
        """Never called."""


class OtherArguments(Plugin):
    """A hook with an argument too many, and another type."""

    name = "other_arguments"

    @hookimpl
    def committed(self, round: Round, batch: object) -> None:  # type: ignore[override]  # planted
        """Never called."""


class OfAnotherApi(Plugin):
    """Written for a contract to come."""

    name = "of_another_api"
    api = ">=9"


class UnwritableOptions(Plugin):
    """An option of a kind that no file can hold."""

    name = "unwritable_options"

    @frozen
    class Options:
        """Options."""

        words: frozenset[str] = field(default=frozenset({"a"}), metadata={"help": "words"})


class UnexplainedOptions(Plugin):
    """An option without a help text."""

    name = "unexplained_options"

    @frozen
    class Options:
        """Options."""

        size: int = 3


def _more(value: int) -> int:
    return value + 1


class ChangingOptions(Plugin):
    """An option that is another one each time it is read."""

    name = "changing_options"

    @frozen
    class Options:
        """Options."""

        size: int = field(default=3, converter=_more, metadata={"help": "how many"})


class ClashingOptions(Plugin):
    """An option whose flag is the engine's."""

    name = "max"

    @frozen
    class Options:
        """Options."""

        batch_size: int = field(default=3, metadata={"help": "how many"})


class BoundCommands(Plugin):
    """Its commands need an instance, and there is none yet."""

    name = "bound_commands"

    @hookimpl
    def cli_commands(self) -> list[CliCommand]:
        return [CliCommand(str(self.options), "help", lambda arguments: 0)]


class UnclaimedFlag(Plugin):
    """A flag for a feature that nobody claims."""

    name = "unclaimed_flag"
    request_flags = (RequestFlag("colour", "colour", "a colour"),)


class SharesAClassAttribute(Plugin):
    """Every engine of the process writes the one list."""

    name = "shares_a_class_attribute"
    rounds: list[int] = []  # noqa:RUF012  # the fault that is planted

    @hookimpl
    def round_done(self, round: Round) -> None:
        self.rounds.append(round.number)


class SharesAModule(Plugin):
    """A module is one in a process."""

    name = "shares_a_module"

    @hookimpl
    def round_done(self, round: Round) -> None:
        SEEN.append(round.number)


class CountsOnTheClass(Plugin):
    """A number on the class."""

    name = "counts_on_the_class"
    count = 0

    @hookimpl
    def round_done(self, round: Round) -> None:
        type(self).count += 1


class SharesADefault(Plugin):
    """A default argument is made once."""

    name = "shares_a_default"

    @hookimpl
    def round_done(self, round: Round) -> None:
        self.remember(round.number)

    def remember(self, number: int, into: list[int] = []) -> None:  # noqa:B006  # planted
        """Keep it."""
        into.append(number)


class SharesAnObject(Plugin):
    """Two instances hold one queue, that neither class nor module changes by itself."""

    name = "shares_an_object"
    _box = (deque([1]),)

    def __init__(self, options: object, engine: Engine) -> None:
        super().__init__(options, engine)
        self.queue = self._box[0]


class LeaksAThread(Plugin):
    """A thread that stop forgets."""

    name = "leaks_a_thread"

    @hookimpl
    def start(self) -> None:
        self.over = threading.Event()
        threading.Thread(target=self.over.wait, name="forgotten", daemon=True).start()


class LeaksADescriptor(Plugin):
    """A file that stop forgets."""

    name = "leaks_a_descriptor"

    @hookimpl
    def start(self) -> None:
        self.fd = os.open(os.devnull, os.O_RDONLY)


class OpensTooEarly(Plugin):
    """What is opened before start is not closed if there is no start."""

    name = "opens_too_early"

    def __init__(self, options: object, engine: Engine) -> None:
        super().__init__(options, engine)
        self.fd = os.open(os.devnull, os.O_RDONLY)

    @hookimpl
    def start(self) -> None:
        """Nothing more to open."""

    @hookimpl
    def stop(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class OutlivesItsEngine(Plugin):
    """Something of the process keeps it for ever."""

    name = "outlives_its_engine"

    @hookimpl
    def start(self) -> None:
        atexit.register(self.last_word)

    def last_word(self) -> None:
        """Say nothing."""


class TakesASignal(Plugin):
    """Signals are the process's."""

    name = "takes_a_signal"

    @hookimpl
    def start(self) -> None:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


class ConfiguresLogging(Plugin):
    """So is the root logger."""

    name = "configures_logging"

    @hookimpl
    def start(self) -> None:
        logging.getLogger().addHandler(logging.NullHandler())


class StopsOnce(Plugin):
    """A stop that cannot come again, as it does after a failed start."""

    name = "stops_once"

    @hookimpl
    def stop(self) -> None:
        del self.options


class TripsAfterAFailedStart(Plugin):
    """A stop that expects everything that start would have made."""

    name = "trips_after_a_failed_start"

    @hookimpl
    def start(self) -> None:
        self.opened = [os.devnull]

    @hookimpl
    def stop(self) -> None:
        self.opened.clear()


FAULTS: dict[type[Plugin], tuple[str, str]] = {
    Misnamed: ("class", "did you mean 'committed'"),
    Unmarked: ("class", "committed has no @hookimpl"),
    OtherArguments: ("class", "takes (round, batch)"),
    OfAnotherApi: ("class", "is written for API >=9"),
    UnwritableOptions: ("options", "no form in TOML"),
    UnexplainedOptions: ("options", "option 'size' has no help"),
    ChangingOptions: ("options", "option 'size' does not come back from TOML"),
    ClashingOptions: ("options", "--max-batch-size"),
    BoundCommands: ("commands", "cli_commands needs an instance"),
    UnclaimedFlag: ("commands", "request flag --colour"),
    SharesAClassAttribute: ("sharing", "class attribute SharesAClassAttribute.rounds"),
    SharesAModule: ("sharing", "faulty_lives.SEEN changed"),
    CountsOnTheClass: ("sharing", "class attribute CountsOnTheClass.count"),
    SharesADefault: ("sharing", "default argument of SharesADefault.remember"),
    SharesAnObject: ("sharing", "self.queue (deque) is one object in two instances"),
    LeaksAThread: ("life", "the thread 'forgotten' still runs"),
    LeaksADescriptor: ("life", "/dev/null is still open"),
    OpensTooEarly: ("unstarted", "never started: /dev/null is still open"),
    OutlivesItsEngine: ("life", "instance is kept alive by"),
    TakesASignal: ("life", "the handler of SIGHUP of the whole process was changed"),
    ConfiguresLogging: ("life", "the root logger of the whole process was changed"),
    StopsOnce: ("life", "AttributeError"),
    TripsAfterAFailedStart: ("failures", "no attribute 'opened'"),
}


@pytest.mark.parametrize("plugin", FAULTS, ids=lambda plugin: str(plugin.__name__))
def test_a_fault_is_found_and_named(plugin: type[Plugin]) -> None:
    """The check that the fault belongs to fails, and a message names it."""
    name, text = FAULTS[plugin]
    outcome = check_named(name).run(Subject(plugin=plugin, patience_s=0.3))
    assert outcome.state is State.FAILED
    assert text in "\n".join(outcome.problems)
