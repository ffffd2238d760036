# SPDX-License-Identifier: MIT
"""What a request must be before the wheel may see it."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from tokenspeed_core.scheduling.population import Population
from tokenspeed_hookspecs import RequestSpec


@frozen
class SubmissionRules:
    """ValueError for what the wheel would refuse, or could never admit.

    `decode_width` is what a decode row feeds at least, whatever the budget.
    """

    max_request_tokens: int
    decode_width: int

    def refuse_wrong(self, specs: Sequence[RequestSpec], population: Population) -> None:
        """Look at all of them before any is taken."""
        seen: set[str] = set()
        for spec in specs:
            self._refuse_wrong_size(spec)
            if spec.request_id in seen:
                raise ValueError(f"expected different request ids, got {spec.request_id!r} twice")
            known = population.get(spec.request_id)
            if known is not None:
                raise ValueError(
                    f"expected a free request id, got {spec.request_id!r}, which is still "
                    f"{known.stage.name.lower()}"
                )
            seen.add(spec.request_id)

    def claimed_tokens(self, spec: RequestSpec) -> int:
        """Prompt and the largest output the request may reach."""
        return len(spec.prompt_ids) + max(spec.max_new_tokens, self.decode_width)

    def _refuse_wrong_size(self, spec: RequestSpec) -> None:
        name, total = spec.request_id, self.claimed_tokens(spec)
        if len(spec.prompt_ids) == 0:
            raise ValueError(f"expected a prompt, got no token for request {name!r}")
        if spec.max_new_tokens < 0:
            raise ValueError(
                f"expected a budget of 0 tokens or more, got {spec.max_new_tokens} for {name!r}"
            )
        if total > self.max_request_tokens:
            raise ValueError(
                f"expected at most {self.max_request_tokens} tokens of prompt and budget, got "
                f"{total} for request {name!r}: the page pool holds no more"
            )
