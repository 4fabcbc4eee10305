"""The model written out is the model of the library; int8 keeps to it closely."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gateway.sidecar.models import minilm
from gateway.sidecar.models.embedder import BuiltInEmbedder, SentenceTransformerEmbedder, builtin_folder
from gateway.sidecar.models.minilm import MiniLM

TEXTS = [
    "A cat sleeps on the warm stones of the harbour wall.",
    "SELECT name FROM towns WHERE people > 10000 ORDER BY name;",
    "Is it safe to mix bleach with vinegar?",
    "Das Wetter wird morgen schöner, sagt man.",
    "",
    "!?",
    "What a long day it was: " + "we walked and walked, and then it rained. " * 14,
    "longer than the model's input " * 100,
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def library() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Poolings by way of sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(builtin_folder()), device="cpu")
    rows = []
    with torch.inference_mode():
        for text in TEXTS:
            tokens = model.tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
            layers = model[0].auto_model(**tokens, output_hidden_states=True).hidden_states
            rows.append(torch.stack([*(layer[0].mean(0) for layer in layers), layers[6][0].amax(0)]).numpy())
    return np.stack(rows)


def cosines(a: Any, b: Any) -> Any:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def test_in_full_precision_it_is_the_librarys(library: Any) -> None:
    got = MiniLM(builtin_folder(), linear=minilm.exact).encode(TEXTS).numpy()
    assert got.shape == (len(TEXTS), len(minilm.POOLS), minilm.WIDTH)
    np.testing.assert_allclose(got, library, atol=2e-5)


def test_in_int8_it_is_close_and_no_text_depends_on_its_company(library: Any) -> None:
    model = MiniLM(builtin_folder(), linear=minilm.int8)
    got = model.encode(TEXTS).numpy()
    assert cosines(got, library).min() >= 0.99
    alone = np.concatenate([model.encode([text]).numpy() for text in TEXTS])
    assert cosines(alone, got).min() > 0.9999


def test_the_faster_way_is_taken() -> None:
    weight = torch.randn(1536, 384, generator=torch.Generator().manual_seed(0))
    assert minilm.fastest(weight) in (minilm.exact, minilm.int8)


def test_where_int8_is_not_to_be_had_it_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(weight: Any, bias: Any) -> Any:
        raise RuntimeError("not on this machine")

    monkeypatch.setattr(minilm, "int8", refused)
    assert minilm.fastest(torch.zeros(8, 8)) is minilm.exact


def test_a_foreign_embedder_gives_sentences_and_nothing_for_heads() -> None:
    ours, foreign = BuiltInEmbedder(), SentenceTransformerEmbedder(str(builtin_folder()))
    one, other = (
        np.frombuffer(embedder.sentence(embedder.encode([TEXTS[0]])[0]), "<f4")
        for embedder in (ours, foreign)
    )
    assert cosines(one, other) > 0.99
    assert foreign.pools == ("sentence",)
    assert len(foreign.beginning("x" * 100_000)) < 10_000
