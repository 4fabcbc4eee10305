"""How many prompt tokens may join a step in which other requests decode, so that inter-token latency stays short."""

from __future__ import annotations

_TARGET = 0.8
"""Share of the allowed step time that is aimed at: steps vary, and the slowest count."""
_SMALLEST = 8
"""Tokens below which a chunk costs nearly the same."""
_FIRST = 32
_REFRESH = 64
"""Mixed steps after which one without prompts measures the decode step again."""
_SMOOTHING = 0.2


class PrefillChunkController:
    """Feedback control of the chunk size by what steps take: no model of the machine, only the last steps' seconds.

    A step that computes a chunk of a prompt beside decodes (a mixed step) may take ``max_itl_ratio`` times as long as
    one that only decodes. After each mixed step the chunk grows or shrinks by how far the step was off. Every further
    prompt that could be computed now may lengthen a step as much again: queued prompts are a load like streams, and
    must not wait for ever for the sake of inter-token latency. While nothing decodes there is no bound.

    On a GPU decode steps are CUDA graphs and mixed ones are not, which costs each mixed step the same, however small
    its chunk. Where that fixed cost alone exceeds the limit, no chunk is small enough, and small ones only make
    prompts take for ever: then ``max_itl_ratio`` is relative to a mixed step with a minimal chunk.
    """

    def __init__(self, max_itl_ratio: float, max_chunk: int) -> None:
        """``max_chunk``: tokens of the largest chunk. ``max_itl_ratio`` 0: all chunks are that large."""
        self._max_itl_ratio = max_itl_ratio
        self._max_chunk = max_chunk
        self._decode_step = 0.0
        """Seconds of a step that only decodes; moving mean."""
        self._mixed = 0
        """Mixed steps since the last one that only decoded."""
        self._per_prompt = float(_FIRST)
        """Tokens for each prompt."""
        self._prompts = 1
        self._excess: dict[int, tuple[float, float]] = {}
        """By bit length of the chunk: tokens, and seconds beyond a decode step's; moving means."""

    def chunk(self, prompts: int = 1) -> int:
        """Prompt tokens that may join the next step if others decode in it; 0 if a step without prompts is due.

        ``prompts``: how many could be computed now.
        """
        if not self._max_itl_ratio:
            return self._max_chunk
        if not self._decode_step or self._mixed >= _REFRESH:
            return 0
        self._prompts = max(1, prompts)
        return min(self._max_chunk, int(self._per_prompt * self._prompts))

    def observe(self, seconds: float, *, prefill_tokens: int, decode_tokens: int) -> None:
        """What the step took for which ``chunk`` was called last."""
        if not decode_tokens or seconds <= 0:
            return
        if not prefill_tokens:
            self._mixed = 0
            self._decode_step += (seconds - self._decode_step) * (_SMOOTHING if self._decode_step else 1.0)
            return
        self._mixed += 1
        self._add_excess(prefill_tokens, seconds - self._decode_step)
        if (
            prefill_tokens < min(self._max_chunk, self._per_prompt * self._prompts) / 2
            or not self._decode_step
        ):
            return
        ratio = max(0.05, self._max_itl_ratio * _TARGET - 1) * self._prompts
        allowed, fixed = ratio * self._decode_step, self._fixed_cost()
        if fixed >= allowed:
            allowed = fixed + ratio * (self._decode_step + fixed)
        excess = max(seconds - self._decode_step, 0.1 * allowed)
        # The square root keeps one slow step from halving the next ten.
        change = min(1.5, max(0.5, (allowed / excess) ** 0.5))
        self._per_prompt = min(float(self._max_chunk), max(float(_SMALLEST), self._per_prompt * change))

    def _add_excess(self, tokens: int, excess: float) -> None:
        size = tokens.bit_length()
        mean_tokens, mean_excess = self._excess.get(size) or (float(tokens), excess)
        self._excess[size] = (
            mean_tokens + (tokens - mean_tokens) * _SMOOTHING,
            mean_excess + (excess - mean_excess) * _SMOOTHING,
        )

    def _fixed_cost(self) -> float:
        """Seconds that a mixed step takes beyond a decode step whatever its chunk: the line through the smallest and
        the largest chunks, at 0 tokens. 0 until there are chunks of two sizes."""
        if len(self._excess) < 2:
            return 0.0
        (few, small), (many, large) = (self._excess[pick(self._excess)] for pick in (min, max))
        return max(0.0, small - max(0.0, large - small) / (many - few) * few)
