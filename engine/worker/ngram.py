"""Prompt lookup: draft tokens are what followed an earlier occurrence of the last few tokens (no model at all).

Answers that quote their prompt (summaries, edits, code) repeat it for many tokens at a time
(https://github.com/apoorvumang/prompt-lookup-decoding).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.core.plan import Plan

SHORTEST = 3
"""Tokens of the shortest match."""
_LONGEST = 32
"""Tokens from which on a longer match is no better."""
_TRIED = 16
"""Most recent positions that are compared."""


class NgramProposer:
    """Proposes from each request's own tokens."""

    source = "ngram"
    block_bytes = 0

    def __init__(self) -> None:
        self._texts: dict[int, _Text] = {}
        self._found: dict[int, list[int]] = {}

    def allocate(self, blocks: int) -> None:
        pass

    def begin(self, plan: Plan) -> None:
        pass

    def look(
        self, plan: Plan, tokens: Mapping[int, Sequence[int]], limits: Mapping[int, int]
    ) -> dict[int, int]:
        self._found = {}
        for scheduled in plan.requests:
            text = self._texts.get(scheduled.request_id)
            if text is None:
                text = self._texts[scheduled.request_id] = _Text()
            text.extend(scheduled.history[len(text.tokens) : scheduled.end - scheduled.num_draft_tokens])
            if scheduled.sampling is not None:
                text.extend(tokens[scheduled.request_id])
            if limit := limits.get(scheduled.request_id):
                draft_tokens = text.propose(limit)
                if draft_tokens:
                    self._found[scheduled.request_id] = draft_tokens
        return {request_id: len(draft_tokens) for request_id, draft_tokens in self._found.items()}

    def prepare(self, lengths: Mapping[int, int]) -> dict[int, int]:
        return dict(lengths)

    def propose(self, lengths: Mapping[int, int]) -> dict[int, list[int]]:
        return {request_id: self._found[request_id][:length] for request_id, length in lengths.items()}

    def forget(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._texts.pop(request_id, None)


class _Text:
    """Tokens, and for each position the previous one at which the same ``SHORTEST`` tokens ended: the hash chains of
    deflate (RFC 1951, section 4). A new token costs one dictionary look-up, however long the text is."""

    __slots__ = ("_before", "_latest", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}
        self._before: list[int] = []
        """By position; -1: none."""

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        text, latest, before = self.tokens, self._latest, self._before
        for end in range(len(before), len(text)):
            key = tuple(text[end - SHORTEST + 1 : end + 1]) if end >= SHORTEST - 1 else ()
            before.append(latest.get(key, -1))
            latest[key] = end

    def propose(self, count: int) -> list[int]:
        """The ``count`` tokens that followed the longest match, the latest of equals; none if there is no match."""
        if len(self.tokens) <= SHORTEST:
            return []
        text = self.tokens
        best, longest, place = -1, 0, self._before[-1]
        for _ in range(_TRIED):
            if place < 0 or longest >= _LONGEST:
                break
            length = self._match(place)
            if length > longest:
                best, longest = place, length
            place = self._before[place]
        if best < 0:
            return []
        draft_tokens: list[int] = []
        for at in range(best + 1, best + 1 + count):
            # A match that reaches the end of the text goes on with what was just proposed: the text repeats itself.
            draft_tokens.append(text[at] if at < len(text) else draft_tokens[at - len(text)])
        return draft_tokens

    def _match(self, place: int) -> int:
        """How many tokens up to ``place`` equal those at the end."""
        text, length = self.tokens, 0
        shift = len(text) - 1 - place
        while length < _LONGEST and length <= place and text[place - length] == text[place - length + shift]:
            length += 1
        return length
