# SPDX-License-Identifier: MIT
"""What an engine tells its client or gateway of itself when it connects."""

from __future__ import annotations

from importlib.metadata import version

from tokenspeed_core.composition.rank import Rank
from tokenspeed_hookspecs import EngineInfo

DISTRIBUTION = "tokenspeed-core"


def engine_info(rank: Rank, *, index: int) -> EngineInfo:
    """Describe a started rank; the longest request is what admission really takes."""
    model, scheduler, config = rank.data_plane.model, rank.scheduler, rank.config
    longest = min(model.max_model_len, config.engine.max_model_len or model.max_model_len)
    features = {feature for member in rank.plugins for feature in member.plugin.features}
    return EngineInfo(
        index=index,
        model=config.engine.model,
        max_model_len=min(longest, scheduler.max_request_tokens),
        vocab_size=model.vocab_size,
        page_size=config.scheduler.page_size,
        num_pages=scheduler.sizes.total_pages,
        dtype=model.dtype,
        version=f"{DISTRIBUTION}-{version(DISTRIBUTION)}",
        max_num_seqs=config.scheduler.max_batch_size,
        features=tuple(sorted(features)),
        details={"plugins": [member.name for member in rank.plugins], **rank.announced()},
    )
