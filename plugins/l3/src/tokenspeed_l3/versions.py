# SPDX-License-Identifier: MIT
"""Which weights' pages may be stored, and under which version's name.

Pages outlive an update of the weights: in the index where it was not flushed, and with requests
that ran on through it. Until no such page is left nothing is stored or fetched, because it would
stand under the new version's name for every engine to find.
"""

from __future__ import annotations

from attrs import define


@define(eq=False)
class Versions:
    """`current` names the namespace, of weights from an update if `is_update`. While `is_stale`,
    pages of other weights may be around."""

    current: str
    is_stale: bool = False
    is_update: bool = False
    _loaded: str | None = None

    def load(self, version: str | None, *, is_clean: bool) -> None:
        """New weights are in place; clean if no page of earlier ones is left."""
        self._loaded, self.is_stale = version, True
        if is_clean:
            self.clear()

    def clear(self) -> None:
        """No page of earlier weights is left. Weights without a name stay unstored: under the old
        name others would take their pages for those of the old weights."""
        if self.is_stale and self._loaded is not None:
            self.current, self.is_stale, self.is_update = self._loaded, False, True
