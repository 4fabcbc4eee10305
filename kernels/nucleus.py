"""Inverting a row's filtered cumulative distribution without a sort: the Triton device functions of kernels/sample.py.

A row's weights are e^((logit - max) / temperature), 0 below min-p: numbers from 0 to 1, whose bits, read as integers,
have the same order. The thresholds of top-k and top-p, and the token itself, are each where the number or sum of the
weights above some bits reaches a target, which a search finds in at most 8 passes over the candidates. Ties are in the
order of ids.
"""

from __future__ import annotations

from kernels.launch import jit, tl


@jit
def load_logits(row, columns, vocab):
    """NaN counts as -inf, and inf as the largest float32."""
    x = tl.load(row + columns, columns < vocab, other=float("-inf")).to(tl.float32)
    return tl.minimum(tl.where(x == x, x, float("-inf")), 3.4e38)


@jit
def load_weights(row, columns, size, max_logit, temperature, min_weight, LOGITS: tl.constexpr):
    """Weights, computed from logits with ``LOGITS``: 0 past the end, and below ``min_weight`` (min-p)."""
    if LOGITS:
        weights = tl.exp((load_logits(row, columns, size) - max_logit) / temperature)
        weights = tl.where(weights < min_weight, 0.0, weights)
    else:
        weights = tl.load(row + columns, columns < size, other=0.0)
    return weights


@jit
def _first_past(weights, index, target, SIZE: tl.constexpr):
    """The first index with a nonzero weight whose cumulative weight exceeds ``target``, and the weight before it."""
    ends = tl.cumsum(weights, 0)
    last = tl.max(tl.where(weights > 0, index, 0), 0)
    found = tl.min(tl.where((weights > 0) & (ends > target), index, SIZE), 0)
    found = tl.minimum(found, last)
    return found, tl.sum(tl.where(index == found, ends - weights, 0.0), 0)


@jit
def pick_unsorted(
    row,
    chunk_maxima,
    sums,
    vocab,
    chunks,
    max_logit,
    temperature,
    min_weight,
    uniform,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    part = tl.arange(0, CHUNKS)
    column = tl.arange(0, CHUNK)
    weights = tl.load(sums + part, part < chunks, other=0.0) * tl.exp(
        (chunk_maxima - max_logit) / temperature
    )
    if min_weight > 0:
        for chunk in range(chunks):
            in_chunk = load_weights(
                row, chunk * CHUNK + column, vocab, max_logit, temperature, min_weight, True
            )
            weights = tl.where(part == chunk, tl.sum(in_chunk, 0), weights)
    target = uniform * tl.sum(weights, 0)
    chunk, before = _first_past(weights, part, target, CHUNKS)
    in_chunk = load_weights(row, chunk * CHUNK + column, vocab, max_logit, temperature, min_weight, True)
    token, _ = _first_past(in_chunk, column, target - before, CHUNK)
    return chunk * CHUNK + token


@jit
def _above(row, size, max_logit, temperature, min_weight, bits, LOGITS: tl.constexpr, BLOCK: tl.constexpr):
    """The number and the sum of the weights with higher bits."""
    count = 0.0
    mass = 0.0
    for start in range(0, size, BLOCK):
        weights = load_weights(
            row, start + tl.arange(0, BLOCK), size, max_logit, temperature, min_weight, LOGITS
        )
        above = weights.to(tl.int32, bitcast=True) > bits
        count += tl.sum(tl.where(above, 1.0, 0.0), 0)
        mass += tl.sum(tl.where(above, weights, 0.0), 0)
    return count, mass


@jit
def _search(
    row,
    size,
    max_logit,
    temperature,
    min_weight,
    low,
    target,
    PAST: tl.constexpr,
    COUNT: tl.constexpr,
    LOGITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
):
    """The highest bits, from ``low`` on, such that the weights with these or higher ones come to ``target``, or past
    it, by their number or their sum. Each pass over the weights tries ``WAYS`` positions."""
    high = 0x3F800000  # of 1.0, the largest weight
    while low < high:
        step = (high - low + WAYS - 1) // WAYS
        candidates = low + step * (1 + tl.arange(0, WAYS))
        totals = tl.zeros([WAYS], tl.float32)
        for start in range(0, size, BLOCK):
            weights = load_weights(
                row, start + tl.arange(0, BLOCK), size, max_logit, temperature, min_weight, LOGITS
            )
            above = weights.to(tl.int32, bitcast=True)[:, None] >= candidates[None, :]
            totals += tl.sum(tl.where(above, 1.0 if COUNT else weights[:, None], 0.0), 0)
        enough = (totals > target) if PAST else (totals >= target)
        low += step * tl.sum((enough & (candidates <= high)).to(tl.int32), 0)
        high = tl.minimum(high, low + step - 1)
    return low


@jit
def _pick_sorted(
    row,
    size,
    max_logit,
    temperature,
    min_weight,
    nonzero,
    mass,
    top_k,
    top_p,
    uniform,
    LOGITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
):
    """The sampled token's position in a row that holds all candidates of ``nonzero`` weights with sum ``mass``."""
    column = tl.arange(0, BLOCK)
    # Every search starts from, and ends at, the bits of an existing weight.
    low = 0x3F800000
    for start in range(0, size, BLOCK):
        weights = load_weights(row, start + column, size, max_logit, temperature, min_weight, LOGITS)
        low = tl.minimum(low, tl.min(tl.where(weights > 0, weights, 1.0).to(tl.int32, bitcast=True), 0))
    # Kept are the weights with higher bits than ``low``, and the first ``ties`` of those with equal bits.
    ties = nonzero
    if top_k < nonzero:
        low = _search(
            row, size, max_logit, temperature, min_weight, low, top_k, False, True, LOGITS, BLOCK, WAYS
        )
        count, mass = _above(row, size, max_logit, temperature, min_weight, low, LOGITS, BLOCK)
        ties = top_k - count
        mass += ties * low.to(tl.float32, bitcast=True)
    if top_p < 1:
        target = top_p * mass
        found = _search(
            row, size, max_logit, temperature, min_weight, low, target, False, False, LOGITS, BLOCK, WAYS
        )
        _, above = _above(row, size, max_logit, temperature, min_weight, found, LOGITS, BLOCK)
        weight = found.to(tl.float32, bitcast=True)
        needed = tl.maximum(tl.ceil((target - above) / weight), 1.0)
        ties = tl.where(found == low, tl.minimum(ties, needed), needed)
        mass = above + ties * weight
        low = found
    target = uniform * mass
    found = _search(
        row, size, max_logit, temperature, min_weight, low, target, True, False, LOGITS, BLOCK, WAYS
    )
    _, above = _above(row, size, max_logit, temperature, min_weight, found, LOGITS, BLOCK)
    rank = tl.maximum(tl.floor((target - above) / found.to(tl.float32, bitcast=True)), 0.0)
    rank = tl.where(found == low, tl.minimum(rank, ties - 1), rank)
    position = 0
    earlier = 0.0
    for start in range(0, size, BLOCK):
        weights = load_weights(row, start + column, size, max_logit, temperature, min_weight, LOGITS)
        same = tl.where(weights.to(tl.int32, bitcast=True) == found, 1.0, 0.0)
        chosen = (same > 0) & (earlier + tl.cumsum(same, 0) - 1 <= rank)
        position = tl.maximum(position, tl.max(tl.where(chosen, start + column, 0), 0))
        earlier += tl.sum(same, 0)
    return position


@jit
def pick_filtered(
    row,
    found,
    ids,
    vocab,
    chunks,
    max_logit,
    temperature,
    min_weight,
    top_k,
    top_p,
    uniform,
    CHUNK: tl.constexpr,
    CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
):
    column = tl.arange(0, CHUNK)
    # By column, over all chunks: number and sum of all weights, and of those above e^-3, e^-7 and e^-12.
    count_0, mass_0 = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    count_1, mass_1 = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    count_2, mass_2 = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    count_3, mass_3 = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    for chunk in range(chunks):
        weights = load_weights(row, chunk * CHUNK + column, vocab, max_logit, temperature, min_weight, True)
        count_0 += tl.where(weights > 0, 1.0, 0.0)
        mass_0 += weights
        count_1 += tl.where(weights >= 4.98e-2, 1.0, 0.0)
        mass_1 += tl.where(weights >= 4.98e-2, weights, 0.0)
        count_2 += tl.where(weights >= 9.12e-4, 1.0, 0.0)
        mass_2 += tl.where(weights >= 9.12e-4, weights, 0.0)
        count_3 += tl.where(weights >= 6.14e-6, 1.0, 0.0)
        mass_3 += tl.where(weights >= 6.14e-6, weights, 0.0)
    nonzero, mass = tl.sum(count_0, 0), tl.sum(mass_0, 0)
    # A cut suffices if it leaves as many weights as top-k keeps or, where that is off, as much mass as top-p.
    count = tl.minimum(top_k, nonzero)
    needed = tl.where(top_k < nonzero, float("inf"), top_p * mass)
    size, cut = nonzero, min_weight
    enough = (tl.sum(count_3, 0) >= count) | (tl.sum(mass_3, 0) >= needed)
    size, cut = tl.where(enough, tl.sum(count_3, 0), size), tl.where(enough, 6.14e-6, cut)
    enough = (tl.sum(count_2, 0) >= count) | (tl.sum(mass_2, 0) >= needed)
    size, cut = tl.where(enough, tl.sum(count_2, 0), size), tl.where(enough, 9.12e-4, cut)
    enough = (tl.sum(count_1, 0) >= count) | (tl.sum(mass_1, 0) >= needed)
    size, cut = tl.where(enough, tl.sum(count_1, 0), size), tl.where(enough, 4.98e-2, cut)
    token = 0
    if size > CANDIDATES:
        token = _pick_sorted(
            row,
            vocab,
            max_logit,
            temperature,
            min_weight,
            nonzero,
            mass,
            top_k,
            top_p,
            uniform,
            True,
            BLOCK,
            WAYS,
        )
    elif size > 0:
        used = 0
        for chunk in range(chunks):
            columns = chunk * CHUNK + column
            weights = load_weights(row, columns, vocab, max_logit, temperature, min_weight, True)
            chosen = ((weights >= cut) & (weights > 0)).to(tl.int32)
            positions = used + tl.cumsum(chosen, 0) - 1
            fits = (chosen > 0) & (positions < CANDIDATES)
            tl.store(found + positions, weights, fits)
            tl.store(ids + positions, columns, fits)
            used += tl.sum(chosen, 0)
        tl.debug_barrier()  # Threads read what other threads of the program stored.
        position = _pick_sorted(
            found,
            used,
            max_logit,
            temperature,
            min_weight,
            nonzero,
            mass,
            top_k,
            top_p,
            uniform,
            False,
            BLOCK,
            WAYS,
        )
        token = tl.load(ids + position)
    return token
