"""A classifier of the transformers library: a tiny one, with random weights, made here."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from gateway.sidecar.api import SidecarError
from gateway.sidecar.models.classifier import TextClassifier
from gateway.sidecar.models.embedder import builtin_folder
from tests.sidecars import SidecarProcess


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(
        tmp_path_factory.mktemp("classifier"), num_labels=3, id2label={0: "safe", 1: "rude", 2: "vile"}
    )


def tiny(folder: Path, **config: object) -> Path:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(max_position_embeddings=64, **sizes, **config))
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(builtin_folder() / name, folder)
    return folder


def test_labels_have_probabilities_that_add_up_to_one(folder: Path) -> None:
    for scores in TextClassifier(str(folder)).classify(["a text", "another, longer than the first"]):
        assert list(scores) == ["safe", "rude", "vile"]
        assert sum(scores.values()) == pytest.approx(1)


def test_independent_labels_do_not_add_up(tmp_path: Path) -> None:
    classifier = TextClassifier(str(tiny(tmp_path, num_labels=2, problem_type="multi_label_classification")))
    (scores,) = classifier.classify(["a text"])
    assert sum(scores.values()) != pytest.approx(1)


def test_a_long_text_is_cut_at_the_models_own_input(folder: Path) -> None:
    classifier = TextClassifier(str(folder))
    text = "ten words that make one sentence of ten words here " * 20
    spans = classifier.windows(text, 64)
    assert len(spans) == 4
    assert (spans[0][0], spans[-1][1]) == (0, len(text))
    with pytest.raises(SidecarError, match="too long"):
        classifier.windows(text, 3)


@pytest.mark.anyio
async def test_the_process_has_the_classifiers_of_the_policy(folder: Path, sidecar_folder: Path) -> None:
    own = sidecar_folder / "c"
    own.mkdir()
    nowhere = str(own / "nowhere")
    process = SidecarProcess(own, embedder=None, classifiers=(str(folder), nowhere))
    process.start()
    client = process.client()
    try:
        ((scored,),) = await client.classify(str(folder), ["a text"])
        assert (scored.start, scored.end, set(scored.scores)) == (0, 6, {"safe", "rude", "vile"})
        with pytest.raises(SidecarError, match="failed: "):
            await client.classify(nowhere, ["a text"])
        assert (await client.status())["models"][str(folder)] == "ready"
    finally:
        await client.aclose()
        process.kill()


def test_threads_may_cut_and_classify_at_once(folder: Path) -> None:
    """A fast tokenizer that one thread sets while another uses it raises "Already borrowed"."""
    classifier = TextClassifier(str(folder))
    text = "ten words that make one sentence of ten words here " * 20

    def cut(_: int) -> int:
        return len(classifier.windows(text, 64))

    def classify(_: int) -> int:
        return len(classifier.classify([text[:100], text]))

    with ThreadPoolExecutor(4) as threads:
        counts = [threads.map(work, range(100)) for work in (cut, classify, cut, classify)]
        assert [set(each) for each in counts] == [{4}, {2}, {4}, {2}]
