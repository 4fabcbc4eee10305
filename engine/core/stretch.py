"""How many tokens of prompts may join a step in which others decode, so that their gaps stay short."""

from __future__ import annotations

_AIM = 0.8
"""Share of the stretch that is aimed at: steps vary, and it is the slowest that count."""
_LEAST = 8
"""Tokens below which a chunk costs nearly the same."""
_FIRST = 32
_REFRESH = 64
"""Mixed steps after which one without prompts shows anew how long such a step takes."""
_FADE = 0.2


class Stretch:
    """Steers the chunk by what steps take: no model of the machine, only the last steps' seconds.

    A step that only decodes is quiet. One with a chunk of a prompt may take ``limit`` times as long; after each such
    step the chunk grows or shrinks by how far it was off. Every further prompt that could be computed now may lengthen
    a step as much again: prompts that pile up are a load like streams, and must not wait for ever for the sake of
    short gaps. While nobody decodes there is no bound.

    On a GPU quiet steps are recorded and mixed ones are not, which costs each of these the same, however small its
    chunk. Where that alone is more than the limit allows, no chunk is small enough, and small ones only make prompts
    take for ever: then ``limit`` is of what a mixed step takes with next to nothing in it.
    """

    def __init__(self, limit: float, most: int) -> None:
        """``most``: tokens of the largest chunk. ``limit`` 0 turns this off: all chunks are as large as can be."""
        self._limit = limit
        self._most = most
        self._quiet = 0.0
        """Seconds of a quiet step."""
        self._mixed = 0
        """Mixed steps since the last quiet one."""
        self._share = float(_FIRST)
        """Tokens for each prompt."""
        self._prompts = 1
        self._excess: dict[int, tuple[float, float]] = {}
        """By powers of two, of the chunks so large: tokens, and seconds beyond a quiet step's; moving means."""

    def chunk(self, prompts: int = 1) -> int:
        """Tokens of prompts that may join the next step if others decode in it; 0 if a quiet one is due.

        ``prompts``: how many could be computed now.
        """
        if not self._limit:
            return self._most
        if not self._quiet or self._mixed >= _REFRESH:
            return 0
        self._prompts = max(1, prompts)
        return min(self._most, int(self._share * self._prompts))

    def observe(self, seconds: float, *, prefill_tokens: int, decode_tokens: int) -> None:
        """What the step took for which a chunk was asked last."""
        if not decode_tokens or seconds <= 0:
            return
        if not prefill_tokens:
            self._mixed = 0
            self._quiet += (seconds - self._quiet) * (_FADE if self._quiet else 1.0)
            return
        self._mixed += 1
        self._note(prefill_tokens, seconds - self._quiet)
        if prefill_tokens < min(self._most, self._share * self._prompts) / 2 or not self._quiet:
            return
        reach = max(0.05, self._limit * _AIM - 1) * self._prompts
        allowed, fixed = reach * self._quiet, self._fixed()
        if fixed >= allowed:
            allowed = fixed + reach * (self._quiet + fixed)
        over = max(seconds - self._quiet, 0.1 * allowed)
        # The root keeps one slow step from halving the next ten.
        change = min(1.5, max(0.5, (allowed / over) ** 0.5))
        self._share = min(float(self._most), max(float(_LEAST), self._share * change))

    def _note(self, tokens: int, excess: float) -> None:
        size = tokens.bit_length()
        known = self._excess.get(size)
        x, y = known or (float(tokens), excess)
        self._excess[size] = x + (tokens - x) * _FADE, y + (excess - y) * _FADE

    def _fixed(self) -> float:
        """Seconds that a mixed step takes beyond a quiet one whatever its chunk; 0 until chunks of two sizes tell."""
        if len(self._excess) < 2:
            return 0.0
        (few, least), (many, most) = (self._excess[pick(self._excess)] for pick in (min, max))
        return max(0.0, least - max(0.0, most - least) / (many - few) * few)
