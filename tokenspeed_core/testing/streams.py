# SPDX-License-Identifier: MIT
"""What an engine sent, sorted by request."""

from __future__ import annotations

from attrs import define, field, frozen

from tokenspeed_hookspecs import ChunkDetails, ControlReply, FinishReason, OutputBatch


@frozen
class Chunk:
    """One row of an output batch; the counts are totals so far."""

    tokens: list[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    details: ChunkDetails | None

    @property
    def finish(self) -> FinishReason | None:
        """The request's end, in its last chunk."""
        return None if self.details is None else self.details.finish


@define
class Stream:
    """Everything one request was sent."""

    request_id: str
    chunks: list[Chunk] = field(factory=list)

    @property
    def tokens(self) -> list[int]:
        """All tokens, in order."""
        return [token for chunk in self.chunks for token in chunk.tokens]

    @property
    def logprobs(self) -> list[float]:
        """The tokens' logprobs, as far as chunks carried some."""
        details = [chunk.details for chunk in self.chunks if chunk.details is not None]
        return [value for each in details for value in each.logprobs or ()]

    @property
    def finish(self) -> FinishReason | None:
        """The request's end, None while it runs."""
        return self.chunks[-1].finish if self.chunks else None

    @property
    def kind(self) -> str | None:
        """How it ended, in the words of the wire: stop, length or abort."""
        return None if self.finish is None else self.finish.kind.value


@define
class Received:
    """The streams by id, one for each time the id was used, and the control replies."""

    _streams: dict[str, list[Stream]] = field(factory=dict)
    replies: list[ControlReply] = field(factory=list)

    def take(self, outputs: OutputBatch) -> list[tuple[str, Chunk]]:
        """Sort a batch's rows into their streams; returns (id, chunk) in row order."""
        found, at = [], 0
        for row, request_id in enumerate(outputs.request_ids):
            tokens = list(outputs.token_ids[at : at + outputs.counts[row]])
            at += outputs.counts[row]
            chunk = Chunk(
                tokens,
                outputs.prompt_tokens[row],
                outputs.completion_tokens[row],
                outputs.cached_tokens[row],
                outputs.details.get(row),
            )
            self._open(request_id).chunks.append(chunk)
            found.append((request_id, chunk))
        if at != len(outputs.token_ids):
            raise AssertionError(f"{at} tokens are counted, {len(outputs.token_ids)} were sent")
        return found

    def all_of(self, request_id: str) -> list[Stream]:
        """Every stream the id had, oldest first."""
        return self._streams.get(request_id, [])

    def ids(self) -> list[str]:
        """Ids that were sent something."""
        return list(self._streams)

    def __getitem__(self, request_id: str) -> Stream:
        """The id's newest stream; an empty one if nothing was sent."""
        return self._streams.get(request_id, [Stream(request_id)])[-1]

    def _open(self, request_id: str) -> Stream:
        streams = self._streams.setdefault(request_id, [])
        if not streams or streams[-1].finish is not None:
            streams.append(Stream(request_id))
        return streams[-1]
