# SPDX-License-Identifier: MIT
"""What an installed engine must do where there is no checkout and no test tool.

Run by the packaging check with the python of an environment that holds built wheels only.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

PACKAGES = ("tokenspeed_hookspecs", "tokenspeed_core")
GROUPS = ("tokenspeed.schedulers", "tokenspeed.data_planes", "tokenspeed.models")


def check_packages() -> int:
    """Import every module from the environment, with its runtime dependencies alone."""
    count = 0
    for name in PACKAGES:
        package = importlib.import_module(name)
        assert Path(str(package.__file__)).is_relative_to(sys.prefix), package.__file__
        assert files(name).joinpath("py.typed").is_file(), f"{name} ships no py.typed"
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
            count += 1
    return count


def check_drivers() -> list[str]:
    """Load every driver the wheels announce."""
    found = [point for group in GROUPS for point in entry_points(group=group)]
    assert {point.group for point in found} == set(GROUPS), found
    return [point.name for point in found if point.load()]


def check_command() -> None:
    """`tokenspeed plugins --json` prints one JSON document."""
    command = [str(Path(sys.prefix, "bin", "tokenspeed")), "plugins", "--json"]
    json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def check_engine() -> None:
    """An engine composed of what is installed answers a prompt, on the data plane of the kit."""
    compose = importlib.import_module("tokenspeed_core").compose
    with compose(data_plane="scripted") as engine:
        (answer,) = engine.generate([[1, 2, 3]], max_new_tokens=3)
    assert answer.token_ids == [1000, 1001, 1002], answer


def main() -> None:
    """Run each check; the first that fails says why."""
    modules, drivers = check_packages(), check_drivers()
    check_engine()
    check_command()
    print(f"from {sys.prefix}: {modules} modules, drivers {', '.join(sorted(drivers))}")


if __name__ == "__main__":
    main()
