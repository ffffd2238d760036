# SPDX-License-Identifier: MIT
"""Write README.md and contract.lock from the contract, or check that both are up to date.

    python hookspecs/generate_reference.py [--check | --unreleased]

The lock holds the version and a digest a public name. A change needs a new version, unless the
locked one was never published (`--unreleased`).
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contract_surface import digests, public
from reference_text import readme

from tokenspeed_hookspecs import API_VERSION

HERE = Path(__file__).resolve().parent
README, LOCK = HERE / "README.md", HERE / "contract.lock"
COMMAND = "python hookspecs/generate_reference.py"


def lock_text(version: str, names: Mapping[str, str]) -> str:
    """Return the lock file of a version and its names' digests."""
    head = f'# SPDX-License-Identifier: MIT\n# Written by {COMMAND}\nversion = "{version}"\n'
    return head + "\n[names]\n" + "".join(f'{n} = "{digest}"\n' for n, digest in names.items())


def changes(locked: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the names that were added, removed or changed."""
    added = [f"{name} is new" for name in found if name not in locked]
    removed = [f"{name} is gone" for name in locked if name not in found]
    other = [f"{n} is different" for n, text in found.items() if locked.get(n, text) != text]
    return added + removed + other


def lock_problem(lock: str, version: str, *, found: Mapping[str, str]) -> str | None:
    """Say what is wrong with a lock file for this version and these digests."""
    held: dict[str, Any] = tomllib.loads(lock) if lock else {"version": "", "names": {}}
    different = changes(held["names"], found)
    if different and held["version"] == version:
        return (
            f"the contract changed and its version did not: {', '.join(different)}. Raise "
            f"API_VERSION above {version} (a name or field that is new: the second number; one "
            f"that is gone or different: the first), then run `{COMMAND}`"
        )
    if different or held["version"] != version:
        return f"contract.lock is of version {held['version']}; run `{COMMAND}`"
    return None


def check() -> list[str]:
    """Return what is stale."""
    lock = LOCK.read_text(encoding="utf-8") if LOCK.exists() else ""
    problem = lock_problem(lock, API_VERSION, found=digests(public()))
    stale = not README.exists() or README.read_text(encoding="utf-8") != readme()
    return [*([problem] if problem else []), *([f"README.md is stale; {COMMAND}"] if stale else [])]


def write(*, is_unreleased: bool) -> list[str]:
    """Write both files; a changed contract under its old version is refused."""
    found = digests(public())
    README.write_text(readme(), encoding="utf-8")
    lock = LOCK.read_text(encoding="utf-8") if LOCK.exists() else ""
    problem = lock_problem(lock, API_VERSION, found=found)
    if problem and problem.startswith("the contract changed") and not is_unreleased:
        return [problem]
    LOCK.write_text(lock_text(API_VERSION, found), encoding="utf-8")
    return []


def main() -> int:
    """Run the command; what is wrong goes to standard error."""
    parser = argparse.ArgumentParser(description="README.md and contract.lock of the contract")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument(
        "--unreleased", action="store_true", help="lock a change of a version never published"
    )
    options = parser.parse_args()
    problems = check() if options.check else write(is_unreleased=options.unreleased)
    for problem in problems:
        sys.stderr.write(problem + "\n")
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
