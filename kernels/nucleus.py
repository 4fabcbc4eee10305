"""Which token of a row a uniform number stands for, in Triton: the device functions of kernels/sample.py.

A row's weights are e^((logit - largest) / temperature), 0 below min-p: numbers from 0 to 1, whose bits as integers are
in their own order. What top-k and top-p keep, and the token itself, are each where a total over the weights from some
bits on reaches a target: found in at most 8 passes over the tokens that may be kept. Of equal weights the lowest ids
come first.
"""

from __future__ import annotations

from kernels.launch import jit, tl


@jit
def load_logits(row, columns, vocab):
    """NaN counts as -inf, and inf as the largest float32."""
    x = tl.load(row + columns, columns < vocab, other=float("-inf")).to(tl.float32)
    return tl.minimum(tl.where(x == x, x, float("-inf")), 3.4e38)


@jit
def load_weights(row, columns, size, top, heat, least, LOGITS: tl.constexpr):
    """Weights themselves, or those of logits: 0 outside, and below min-p."""
    if LOGITS:
        weights = tl.exp((load_logits(row, columns, size) - top) / heat)
        weights = tl.where(weights < least, 0.0, weights)
    else:
        weights = tl.load(row + columns, columns < size, other=0.0)
    return weights


@jit
def _first_past(weights, index, target, SIZE: tl.constexpr):
    """The first index whose cumulative weight passes ``target``, and the weight before it; no weight of 0."""
    ends = tl.cumsum(weights, 0)
    last = tl.max(tl.where(weights > 0, index, 0), 0)
    found = tl.min(tl.where((weights > 0) & (ends > target), index, SIZE), 0)
    found = tl.minimum(found, last)
    return found, tl.sum(tl.where(index == found, ends - weights, 0.0), 0)


@jit
def pick_unsorted(
    row, tops, sums, vocab, chunks, top, heat, least, uniform, CHUNKS: tl.constexpr, CHUNK: tl.constexpr
):
    part = tl.arange(0, CHUNKS)
    column = tl.arange(0, CHUNK)
    weights = tl.load(sums + part, part < chunks, other=0.0) * tl.exp((tops - top) / heat)
    if least > 0:
        for chunk in range(chunks):
            inside = load_weights(row, chunk * CHUNK + column, vocab, top, heat, least, True)
            weights = tl.where(part == chunk, tl.sum(inside, 0), weights)
    target = uniform * tl.sum(weights, 0)
    chunk, before = _first_past(weights, part, target, CHUNKS)
    inside = load_weights(row, chunk * CHUNK + column, vocab, top, heat, least, True)
    token, _ = _first_past(inside, column, target - before, CHUNK)
    return chunk * CHUNK + token


@jit
def _above(row, size, top, heat, least, bits, LOGITS: tl.constexpr, BLOCK: tl.constexpr):
    """Of the weights with higher bits: their number, and their sum."""
    count = 0.0
    mass = 0.0
    for start in range(0, size, BLOCK):
        weights = load_weights(row, start + tl.arange(0, BLOCK), size, top, heat, least, LOGITS)
        above = weights.to(tl.int32, bitcast=True) > bits
        count += tl.sum(tl.where(above, 1.0, 0.0), 0)
        mass += tl.sum(tl.where(above, weights, 0.0), 0)
    return count, mass


@jit
def _search(
    row,
    size,
    top,
    heat,
    least,
    low,
    target,
    PAST: tl.constexpr,
    COUNT: tl.constexpr,
    LOGITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
):
    """The highest bits, from ``low`` on, such that the weights with these or higher ones come to ``target``, or past
    it, by their number or their sum. Each pass over the weights tries ``WAYS`` places."""
    high = 0x3F800000  # of 1.0, the largest weight
    while low < high:
        step = (high - low + WAYS - 1) // WAYS
        tried = low + step * (1 + tl.arange(0, WAYS))
        totals = tl.zeros([WAYS], tl.float32)
        for start in range(0, size, BLOCK):
            weights = load_weights(row, start + tl.arange(0, BLOCK), size, top, heat, least, LOGITS)
            above = weights.to(tl.int32, bitcast=True)[:, None] >= tried[None, :]
            totals += tl.sum(tl.where(above, 1.0 if COUNT else weights[:, None], 0.0), 0)
        enough = (totals > target) if PAST else (totals >= target)
        low += step * tl.sum((enough & (tried <= high)).to(tl.int32), 0)
        high = tl.minimum(high, low + step - 1)
    return low


@jit
def _pick_sorted(
    row,
    size,
    top,
    heat,
    least,
    known,
    mass,
    top_k,
    top_p,
    uniform,
    LOGITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
):
    """Where the token stands in a row that has all that the filters may keep of ``known`` weights with sum ``mass``."""
    column = tl.arange(0, BLOCK)
    # Every search starts from and finds the bits of a weight that is there.
    low = 0x3F800000
    for start in range(0, size, BLOCK):
        weights = load_weights(row, start + column, size, top, heat, least, LOGITS)
        low = tl.minimum(low, tl.min(tl.where(weights > 0, weights, 1.0).to(tl.int32, bitcast=True), 0))
    # Kept is what has higher bits than ``low``, and of those with just these bits the first ``ties``.
    ties = known
    if top_k < known:
        low = _search(row, size, top, heat, least, low, top_k, False, True, LOGITS, BLOCK, WAYS)
        count, mass = _above(row, size, top, heat, least, low, LOGITS, BLOCK)
        ties = top_k - count
        mass += ties * low.to(tl.float32, bitcast=True)
    if top_p < 1:
        target = top_p * mass
        found = _search(row, size, top, heat, least, low, target, False, False, LOGITS, BLOCK, WAYS)
        _, above = _above(row, size, top, heat, least, found, LOGITS, BLOCK)
        weight = found.to(tl.float32, bitcast=True)
        share = tl.maximum(tl.ceil((target - above) / weight), 1.0)
        ties = tl.where(found == low, tl.minimum(ties, share), share)
        mass = above + ties * weight
        low = found
    target = uniform * mass
    found = _search(row, size, top, heat, least, low, target, True, False, LOGITS, BLOCK, WAYS)
    _, above = _above(row, size, top, heat, least, found, LOGITS, BLOCK)
    rank = tl.maximum(tl.floor((target - above) / found.to(tl.float32, bitcast=True)), 0.0)
    rank = tl.where(found == low, tl.minimum(rank, ties - 1), rank)
    place = 0
    seen = 0.0
    for start in range(0, size, BLOCK):
        weights = load_weights(row, start + column, size, top, heat, least, LOGITS)
        same = tl.where(weights.to(tl.int32, bitcast=True) == found, 1.0, 0.0)
        chosen = (same > 0) & (seen + tl.cumsum(same, 0) - 1 <= rank)
        place = tl.maximum(place, tl.max(tl.where(chosen, start + column, 0), 0))
        seen += tl.sum(same, 0)
    return place


@jit
def pick_filtered(
    row,
    found,
    ids,
    vocab,
    chunks,
    top,
    heat,
    least,
    top_k,
    top_p,
    uniform,
    CHUNK: tl.constexpr,
    CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
):
    column = tl.arange(0, CHUNK)
    # Sums by column, over the chunks: of all weights, and of those above three cuts, e^-3, e^-7 and e^-12.
    count_0, mass_0 = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    count_1, mass_1 = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    count_2, mass_2 = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    count_3, mass_3 = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    for chunk in range(chunks):
        weights = load_weights(row, chunk * CHUNK + column, vocab, top, heat, least, True)
        count_0 += tl.where(weights > 0, 1.0, 0.0)
        mass_0 += weights
        count_1 += tl.where(weights >= 4.98e-2, 1.0, 0.0)
        mass_1 += tl.where(weights >= 4.98e-2, weights, 0.0)
        count_2 += tl.where(weights >= 9.12e-4, 1.0, 0.0)
        mass_2 += tl.where(weights >= 9.12e-4, weights, 0.0)
        count_3 += tl.where(weights >= 6.14e-6, 1.0, 0.0)
        mass_3 += tl.where(weights >= 6.14e-6, weights, 0.0)
    known, mass = tl.sum(count_0, 0), tl.sum(mass_0, 0)
    # A cut will do that leaves as many as top-k keeps; or, where that is off, as much as top-p.
    count = tl.minimum(top_k, known)
    share = tl.where(top_k < known, float("inf"), top_p * mass)
    size, cut = known, least
    enough = (tl.sum(count_3, 0) >= count) | (tl.sum(mass_3, 0) >= share)
    size, cut = tl.where(enough, tl.sum(count_3, 0), size), tl.where(enough, 6.14e-6, cut)
    enough = (tl.sum(count_2, 0) >= count) | (tl.sum(mass_2, 0) >= share)
    size, cut = tl.where(enough, tl.sum(count_2, 0), size), tl.where(enough, 9.12e-4, cut)
    enough = (tl.sum(count_1, 0) >= count) | (tl.sum(mass_1, 0) >= share)
    size, cut = tl.where(enough, tl.sum(count_1, 0), size), tl.where(enough, 4.98e-2, cut)
    token = 0
    if size > CANDIDATES:
        token = _pick_sorted(
            row, vocab, top, heat, least, known, mass, top_k, top_p, uniform, True, BLOCK, WAYS
        )
    elif size > 0:
        used = 0
        for chunk in range(chunks):
            columns = chunk * CHUNK + column
            weights = load_weights(row, columns, vocab, top, heat, least, True)
            chosen = ((weights >= cut) & (weights > 0)).to(tl.int32)
            places = used + tl.cumsum(chosen, 0) - 1
            fits = (chosen > 0) & (places < CANDIDATES)
            tl.store(found + places, weights, fits)
            tl.store(ids + places, columns, fits)
            used += tl.sum(chosen, 0)
        tl.debug_barrier()  # What a program's threads stored, others of them read.
        place = _pick_sorted(
            found, used, top, heat, least, known, mass, top_k, top_p, uniform, False, BLOCK, WAYS
        )
        token = tl.load(ids + place)
    return token
