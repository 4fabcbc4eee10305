from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.core.sampling_params import SamplingParams
from engine.core.sampling_row import SamplingRow
from engine.worker import logit_editor
from engine.worker.logit_editor import LogitEditor
from kernels import edit_logits
from kernels.edit_logits import Edits, edit_logits_reference, edit_logits_triton
from tests.kernels.triton_cases import assert_close, poisoned
from tests.sampling import diagonal

__all__ = ["poisoned"]

NEVER = float("-inf")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_logits, "SIZES", {"CHUNK": 64, "BLOCK": 16})


def places(rows: list[list[list[int]]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``rows`` of stops, of biases and of penalties, with random figures."""
    lists = [tokens for kind in rows for tokens in kind]
    starts = torch.tensor([0, *(len(tokens) for tokens in lists)]).cumsum(0).int()
    tokens = torch.tensor([token for tokens in lists for token in tokens], dtype=torch.int32)
    return starts, tokens, torch.randn(len(tokens)) * 3, torch.rand(len(tokens)) + 0.5


def plainly(logits: Tensor, edits: Edits) -> Tensor:
    """The formula, a number at a time, in float64."""
    rows, vocab = logits.shape
    found = logits.double().tolist()
    for row, x in enumerate(found):
        if edits.mask_of is not None and (mask := int(edits.mask_of[row])) >= 0:
            words = [int(word) & (2**32 - 1) for word in edits.bits[mask]]
            for token in range(vocab):
                if token >= 32 * len(words) or not words[token // 32] >> token % 32 & 1:
                    x[token] = NEVER
        if edits.starts is not None:
            stops, biases, penalties = (
                range(int(edits.starts[at]), int(edits.starts[at + 1])) for at in range(row, 3 * rows, rows)
            )
            stopped = {int(edits.tokens[i]) for i in stops}
            if any(value > NEVER for token, value in enumerate(x) if token not in stopped):
                for token in stopped:
                    x[token] = NEVER
            for i in biases:
                x[int(edits.tokens[i])] += float(edits.first[i])
            for i in penalties:
                token, factor = int(edits.tokens[i]), float(edits.second[i])
                x[token] = x[token] / factor if x[token] > 0 else x[token] * factor
                x[token] -= float(edits.first[i])
    return torch.tensor(found, dtype=torch.float64).reshape(rows, vocab)


@pytest.mark.parametrize(
    ("vocab", "dtype"), diagonal([31, 64, 65, 130], [torch.float32, torch.float16, torch.bfloat16])
)
def test_equals_the_formula(vocab: int, dtype: torch.dtype) -> None:
    logits = (torch.randn(4, 2 * vocab) * 3).to(dtype)[:, :vocab]
    before = logits.clone()

    def some(count: int) -> list[int]:
        return torch.randperm(vocab)[:count].tolist()

    # More than a block of each; and rows that ask for nothing.
    of = [
        [some(20), [], some(1), []],
        [some(30), some(2), [], []],
        [some(17), some(16), some(vocab), []],
    ]
    # A row's words may be fewer than the vocabulary has.
    bits = torch.randint(-(2**31), 2**31, (2, vocab // 32 or 1), dtype=torch.int32)
    mask_of = torch.tensor([1, -1, 0, -1], dtype=torch.int32)
    for edits in (Edits(mask_of, bits, *places(of)), Edits(mask_of, bits), Edits(None, None, *places(of))):
        expected = plainly(logits, edits)
        for found in (edit_logits_triton(logits, edits), edit_logits_reference(logits, edits)):
            assert found.dtype == torch.float32
            assert_close(found, expected)
    assert torch.equal(logits, before)


def test_stops_give_way_where_nothing_else_is_allowed() -> None:
    logits = torch.randn(3, 100)
    bits = torch.zeros(2, 4, dtype=torch.int32)
    bits[0, 1] = 1 << 7 | 1 << 9  # 39 and 41
    bits[1, 1] = 1 << 7 | 1 << 10
    stops = [39, 41, *range(50, 80)]
    mask_of = torch.tensor([0, 1, -1], dtype=torch.int32)
    edits = Edits(mask_of, bits, *places([[stops] * 3, [[]] * 3, [[]] * 3]))
    found = edit_logits_triton(logits, edits) > NEVER
    assert found[0].nonzero().flatten().tolist() == [39, 41]
    assert found[1].nonzero().flatten().tolist() == [42]
    assert found[2].sum() == 100 - len(stops)


def a_draw(number: int, history: list[int], guesses: tuple[int, ...] = (), **params: Any) -> SamplingRow:
    return SamplingRow(number, SamplingParams(max_tokens=9, **params), history, 3, list(guesses))


@pytest.mark.parametrize("masked", [False, True])
def test_a_batch_is_edited_as_on_a_cpu(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(6, 70)
    sampling_rows = [
        a_draw(0, [5, 6, 7, 5, 5, 8], presence_penalty=0.5, frequency_penalty=0.25),
        a_draw(1, [1, 2, 3]),
        a_draw(2, [9, 9, 9, 9], (9, 4), repetition_penalty=1.3, logit_bias=((9, 2.0), (69, -50.0), (9, 1.0))),
        a_draw(3, [1, 2, 3, 4], min_tokens=4, stop_token_ids=frozenset({60, 61, 200})),
        a_draw(4, [1, 2, 3], logit_bias=((0, 100.0),)),
        a_draw(5, [1, 2, 3, 1], min_tokens=1, stop_token_ids=frozenset({60}), frequency_penalty=1.0),
    ]
    bits = torch.randint(-(2**31), 2**31, (2, 3), dtype=torch.int32)
    masks = ([1, 3], bits) if masked else None
    expected = LogitEditor().edit(logits, sampling_rows, masks)
    monkeypatch.setattr(logit_editor, "on_triton", lambda x: True)
    torch.testing.assert_close(LogitEditor().edit(logits, sampling_rows, masks), expected)
    assert LogitEditor().edit(logits[1:2], sampling_rows[1:2]) is not None
