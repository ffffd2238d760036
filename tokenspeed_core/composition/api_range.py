# SPDX-License-Identifier: MIT
"""Whether a plugin was written for this version of the contract."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from tokenspeed_hookspecs import API_VERSION

CONTRACT = "tokenspeed-hookspecs"


def api_problems(api: object, requires: Iterable[str] = ()) -> list[str]:
    """Return what is wrong with a plugin's `api` and its distribution's requirements."""
    problems = []
    try:
        if not SpecifierSet(str(api)).contains(API_VERSION, prereleases=True):
            problems.append(f"is written for API {api}, this engine has {API_VERSION}")
    except InvalidSpecifier:
        problems.append(f"its api {api!r} is no version range, such as '>=1,<2'")
    for requirement in _on_contract(requires):
        if not requirement.specifier.contains(API_VERSION, prereleases=True):
            problems.append(
                f"its distribution requires {requirement}, this engine has {API_VERSION}"
            )
    return problems


def _on_contract(requires: Iterable[str]) -> Iterable[Requirement]:
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # pip refuses what pip cannot read; it says nothing of the contract
        if canonicalize_name(requirement.name) == CONTRACT:
            yield requirement
