from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.core.sampling_params import SamplingParams
from engine.core.sampling_row import SamplingRow
from engine.worker.logit_editor import LogitEditor

VOCAB = 40
NEVER = float("-inf")


def a_draw(
    history: list[int],
    prompt_length: int = 0,
    *,
    number: int = 1,
    draft_tokens: tuple[int, ...] = (),
    **params: Any,
) -> SamplingRow:
    sampling = SamplingParams(max_tokens=100, **params)
    return SamplingRow(number, sampling, history, prompt_length, list(draft_tokens))


def some_logits(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def bits(*allowed: set[int], words: int = 2) -> Tensor:
    """A grammar's masks: int32 [len(allowed), words]."""
    flags = np.zeros((len(allowed), words * 32), dtype=np.uint8)
    for row, tokens in enumerate(allowed):
        flags[row, list(tokens)] = 1
    return torch.from_numpy(np.packbits(flags, axis=-1, bitorder="little").view(np.int32))


def plainly(logits: list[float], sampling_row: SamplingRow) -> list[float]:
    """Bias and penalties, read off their definitions: OpenAI's two, and Hugging Face's for repetition."""
    params, answer = (
        sampling_row.sampling,
        sampling_row.history[sampling_row.prompt_length :] + sampling_row.draft_tokens,
    )
    found = []
    for token, logit in enumerate(logits):
        logit += sum(bias for biased, bias in params.logit_bias if biased == token)
        if token in sampling_row.history[: sampling_row.prompt_length] + answer:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        count = answer.count(token)
        found.append(logit - count * params.frequency_penalty - (count > 0) * params.presence_penalty)
    return found


tokens = st.lists(st.integers(0, VOCAB - 1), max_size=30)
parameters = st.fixed_dictionaries(
    {},
    optional={
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.01, 100),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=5).map(
            lambda biases: tuple(biases.items())
        ),
    },
)


@given(st.lists(st.tuples(tokens, tokens, tokens.map(tuple), parameters), min_size=1, max_size=4))
def test_penalties_and_biases_are_as_defined(rows: list[tuple[Any, ...]]) -> None:
    logits = some_logits(len(rows))
    sampling_rows = [
        a_draw(prompt + answer, len(prompt), number=i, draft_tokens=draft_tokens, **params)
        for i, (prompt, answer, draft_tokens, params) in enumerate(rows)
    ]
    found = LogitEditor().edit(logits, sampling_rows)
    for row, sampling_row in enumerate(sampling_rows):
        expected = torch.tensor(plainly(logits[row].double().tolist(), sampling_row))
        torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-4)


@given(
    prompt=tokens,
    outputs=st.lists(st.tuples(tokens.map(lambda t: t[:4]), tokens.map(lambda t: tuple(t[:4]))), max_size=10),
    params=parameters,
)
def test_counting_along_is_counting_anew(
    prompt: list[int], outputs: list[Any], params: dict[str, Any]
) -> None:
    editor, logits = LogitEditor(), some_logits(1)
    history = list(prompt)
    sampling = SamplingParams(max_tokens=100, **params)
    for gained, draft_tokens in outputs:
        history.extend(gained)
        for known in ((), draft_tokens):
            sampling_row = SamplingRow(1, sampling, history, len(prompt), list(known))
            assert torch.equal(
                editor.edit(logits, [sampling_row]), LogitEditor().edit(logits, [sampling_row])
            )


class Watched(list[int]):
    """Notes how many tokens are read of it."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.read += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self) -> Any:
        self.read += len(self)
        return super().__iter__()


def test_a_step_reads_only_what_is_new() -> None:
    editor, logits = LogitEditor(), some_logits(1)
    history = Watched(range(VOCAB))
    params = SamplingParams(max_tokens=100, repetition_penalty=1.1, frequency_penalty=0.5)
    editor.edit(logits, [SamplingRow(1, params, history, 20, [])])
    before = history.read
    for token in range(10):
        history.append(token)
        editor.edit(logits, [SamplingRow(1, params, history, 20, [])])
    assert history.read - before == 10


def test_a_request_that_takes_anothers_number_starts_anew() -> None:
    editor, logits = LogitEditor(), some_logits(1)
    params = SamplingParams(max_tokens=100, presence_penalty=1.0)
    editor.edit(logits, [SamplingRow(1, params, [3, 4, 5], 0, [])])
    found = editor.edit(logits, [SamplingRow(1, params, [6, 7], 0, [])])
    assert (found != logits)[0].nonzero().squeeze(1).tolist() == [6, 7]
    # As do siblings, which begin beside the first choice's tokens and go on with their own.
    shared = [1, 2]
    first, second = (SamplingRow(number, params, shared, 2, []) for number in (8, 9))
    assert torch.equal(editor.edit(logits.expand(2, -1), [first, second]), logits.expand(2, -1))
    found = editor.edit(
        logits.expand(2, -1),
        [SamplingRow(8, params, [1, 2, 10], 2, []), SamplingRow(9, params, [1, 2, 11], 2, [])],
    )
    assert (found != logits).nonzero().tolist() == [[0, 10], [1, 11]]


def test_logits_that_nobody_edits_are_passed_on_and_those_edited_are_left_alone() -> None:
    logits = some_logits(2)
    plain = a_draw([1, 2], temperature=0.5, top_k=3, top_p=0.1, min_p=0.2, stop_token_ids=frozenset({1}))
    assert LogitEditor().edit(logits, [plain, plain]) is logits
    before = logits.clone()
    found = LogitEditor().edit(logits, [plain, a_draw([1, 2], number=2, presence_penalty=1.0)])
    assert torch.equal(logits, before)
    assert torch.equal(found[0], before[0])
    assert not torch.equal(found[1], before[1])


def test_rows_do_not_change_each_other() -> None:
    sampling_rows = [
        a_draw([1, 2, 3], 2, number=1, repetition_penalty=1.5),
        a_draw([5] * 9, 4, number=2, frequency_penalty=0.3, logit_bias=((5, 2.5),)),
        a_draw([7], 1, number=3),
        a_draw([8, 9], 1, number=4, min_tokens=4, stop_token_ids=frozenset({0, 9})),
        a_draw([8, 9], 1, number=5),
    ]
    logits = some_logits(5)
    masks = bits(set(range(20)), {0, 9, 30})
    together = LogitEditor().edit(logits, sampling_rows, ([2, 3], masks))
    for row, sampling_row in enumerate(sampling_rows):
        own = {2: ([0], masks[:1]), 3: ([0], masks[1:])}.get(row)
        assert torch.equal(LogitEditor().edit(logits[row : row + 1], [sampling_row], own)[0], together[row])


def test_half_precision_is_edited_in_single() -> None:
    logits = torch.full((1, VOCAB), 1.0, dtype=torch.bfloat16)
    found = LogitEditor().edit(logits, [a_draw([3], logit_bias=((3, 0.001),))])
    assert found.dtype == torch.float32
    assert found[0, 3].item() == pytest.approx(1.001, abs=1e-6)


@given(st.lists(st.sets(st.integers(0, VOCAB - 1)), min_size=1, max_size=4), st.integers(1, 3))
def test_a_mask_bars_all_that_it_does_not_name(allowed: list[set[int]], words: int) -> None:
    """Whether the mask is longer than the vocabulary or, where that is padded, shorter."""
    allowed = [{token for token in row if token < words * 32} for row in allowed]
    logits = some_logits(len(allowed) + 1)
    sampling_rows = [a_draw([1], number=row) for row in range(len(allowed) + 1)]
    rows = list(range(1, len(allowed) + 1))
    found = LogitEditor().edit(logits, sampling_rows, (rows, bits(*allowed, words=words)))
    assert torch.equal(found[0], logits[0])
    for row, names in zip(rows, allowed, strict=True):
        assert set((found[row] > NEVER).nonzero().squeeze(1).tolist()) == names
        assert torch.equal(found[row, list(names)], logits[row, list(names)])


def test_what_a_mask_bars_no_bias_brings_back() -> None:
    sampling_row = a_draw(
        [3, 4],
        presence_penalty=-2.0,
        repetition_penalty=0.01,
        logit_bias=tuple((t, 100.0) for t in range(VOCAB)),
    )
    found = LogitEditor().edit(some_logits(1), [sampling_row], ([0], bits({3})))
    assert (found[0] > NEVER).nonzero().squeeze(1).tolist() == [3]
    assert not found.isnan().any()


def test_min_tokens_bars_the_stop_tokens_until_then() -> None:
    logits = some_logits(4)
    params = SamplingParams(max_tokens=9, min_tokens=2, stop_token_ids=frozenset({5, 6, VOCAB + 3}))
    sampling_rows = [
        SamplingRow(1, params, [0, 0, 0], 3, []),
        SamplingRow(2, params, [0, 0, 0, 1], 3, []),
        SamplingRow(2, params, [0, 0, 0, 1], 3, [1]),
        SamplingRow(3, params, [0, 0, 0, 1, 1], 3, []),
    ]
    sampling_rows[2].history = sampling_rows[1].history
    found = LogitEditor().edit(logits, sampling_rows)
    barred = [[5, 6], [5, 6], [], []]
    assert [(row == NEVER).nonzero().squeeze(1).tolist() for row in found] == barred
    # Biased as one may, they stay so.
    params = SamplingParams(
        max_tokens=9, min_tokens=1, stop_token_ids=frozenset({5}), logit_bias=((5, 100.0),)
    )
    assert LogitEditor().edit(logits[:1], [SamplingRow(1, params, [0], 1, [])])[0, 5] == NEVER


def test_min_tokens_gives_way_where_a_grammar_allows_only_the_end() -> None:
    params = SamplingParams(max_tokens=9, min_tokens=5, stop_token_ids=frozenset({5, 6}))
    sampling_rows = [SamplingRow(number, params, [0], 1, []) for number in range(2)]
    found = LogitEditor().edit(some_logits(2), sampling_rows, ([0, 1], bits({5}, {5, 7})))
    assert [(row > NEVER).nonzero().squeeze(1).tolist() for row in found] == [[5], [7]]
