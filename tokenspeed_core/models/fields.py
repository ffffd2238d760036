# SPDX-License-Identifier: MIT
"""Reading typed values out of a foreign JSON object, with all its problems in one report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenspeed_core.models.errors import ModelError, bullet_list


def read_json_object(path: Path) -> dict[str, object]:
    """Read a file that must hold one JSON object; a ModelError names the file otherwise."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON ({error}); is the file cut short?") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


class FieldReader:
    """Takes fields one by one, notes what is wrong, and knows which were never asked for.

    After a problem the getters return a harmless stand-in, so that reading goes on and
    `finish` can report every problem at once.
    """

    def __init__(self, fields: Mapping[str, object], where: str) -> None:
        self._fields = fields
        self._where = where
        self._taken: set[str] = set()
        self._problems: list[str] = []

    def raw(self, name: str) -> object:
        """Take a field as it is; None when it is absent or null."""
        self._taken.add(name)
        return self._fields.get(name)

    def positive(self, name: str, default: int | None = None) -> int:
        """Take an integer of at least 1; without a default the field is required."""
        value = self.raw(name)
        if value is None and default is not None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        self.problem(name, value, expected="an integer of at least 1")
        return default or 1

    def real(self, name: str, default: float | None = None) -> float:
        """Take a number above zero; without a default the field is required."""
        value = self.raw(name)
        if value is None and default is not None:
            return default
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e30:
            return float(value)
        self.problem(name, value, expected="a number above zero")
        return default or 1.0

    def flag(self, name: str, default: bool) -> bool:
        """Take true or false."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        self.problem(name, value, expected="true or false")
        return default

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Take one token id or a list of them; absent means none."""
        value = self.raw(name)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        ids = tuple(i for i in listed if isinstance(i, int) and not isinstance(i, bool) and i >= 0)
        if len(ids) != len(listed):
            self.problem(name, value, expected="a token id or a list of token ids")
        return ids

    def expect(self, name: str, *allowed: object) -> None:
        """Take a field that may only be absent, null or one of the allowed values."""
        value = self.raw(name)
        if value is not None and value not in allowed:
            self.problem(name, value, expected=" or ".join(repr(choice) for choice in allowed))

    def ignore(self, names: Iterable[str]) -> None:
        """Take fields whose values do not matter here."""
        self._taken.update(names)

    def untaken(self) -> list[tuple[str, object]]:
        """Return the fields nobody took, with their values."""
        return [(name, value) for name, value in self._fields.items() if name not in self._taken]

    def problem(self, name: str, value: object, *, expected: str) -> None:
        """Note that a field's value cannot be used, and what is expected instead."""
        got = "is missing" if value is None else f"= {_shortened(value)}"
        self._problems.append(f"{name} {got}; expected {expected}")

    def finish(self) -> None:
        """Raise one ModelError that lists every problem, if there was any."""
        if self._problems:
            raise ModelError(
                bullet_list(f"{self._where}: not usable", list(dict.fromkeys(self._problems)))
            )


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
