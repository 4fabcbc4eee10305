"""``/v1/rerank`` and ``/v1/score`` of the real server: a tiny cross-encoder, and a decoder that answers yes or no."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import Qwen3ForCausalLM

from engine.pooling.spec import PoolingSpec
from engine.server.pooling.text_encoder import INSTRUCTION, Limits, VerdictEncoder
from engine.server.pooling.text_encoder import (
    CrossEncoder as PairEncoder,
)
from tests.engine.live import EngineServer
from tests.engine.pooling.encoders import decoder, encoder, write
from tests.engine.tiny import make_tokenizer

QUERY = "who is a cat ?"
DOCUMENTS = ["the cat", "lorem ipsum", "dog " * 30, "a", "sit amet a dog runs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder(tmp_path_factory.mktemp("model") / "tiny", "BertForSequenceClassification", num_labels=1)


@pytest.fixture(scope="module")
def ranker(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    with EngineServer(
        folder, "--served-model-name", "r", log=tmp_path_factory.mktemp("logs") / "log"
    ) as server:
        yield server


def test_ranks_are_those_of_sentence_transformers(folder: Path, ranker: EngineServer) -> None:
    theirs = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    expected = theirs.predict([(QUERY, document) for document in DOCUMENTS])
    answer = ranker.post("/v1/rerank", model="r", query=QUERY, documents=DOCUMENTS).json()
    results = answer["results"]
    assert [one["index"] for one in results] == sorted(range(5), key=lambda at: -expected[at])
    assert all(one["document"] == {"text": DOCUMENTS[one["index"]]} for one in results)
    for one in results:
        assert one["relevance_score"] == pytest.approx(expected[one["index"]], abs=1e-5)
    assert answer["id"].startswith("rerank-") and answer["model"] == "r"
    tokens = sum(len(theirs.tokenizer(QUERY, document)["input_ids"]) for document in DOCUMENTS)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_scores_of_pairs(folder: Path, ranker: EngineServer) -> None:
    theirs = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    one_to_many = ranker.post("/v1/score", model="r", text_1=QUERY, text_2=DOCUMENTS).json()
    assert one_to_many["object"] == "list" and one_to_many["data"][1]["object"] == "score"
    expected = theirs.predict([(QUERY, document) for document in DOCUMENTS])
    assert [one["score"] for one in one_to_many["data"]] == pytest.approx(list(expected), abs=1e-5)
    paired = ranker.post("/score", model="r", text_1=["a", "the dog"], text_2=["cat", "a cat"]).json()
    expected = theirs.predict([("a", "cat"), ("the dog", "a cat")])
    assert [one["score"] for one in paired["data"]] == pytest.approx(list(expected), abs=1e-5)
    raw = ranker.post("/v1/score", model="r", text_1="a", text_2="cat", use_activation=False).json()
    logit = theirs.predict([("a", "cat")], activation_fn=torch.nn.Identity())[0]
    assert raw["data"][0]["score"] == pytest.approx(float(logit), abs=1e-4)


def test_top_n_and_documents_as_objects(ranker: EngineServer) -> None:
    documents = [{"text": text} for text in DOCUMENTS]
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        answer = ranker.post(
            path, model="r", query=QUERY, documents=documents, top_n=2, return_documents=False
        ).json()
        assert [set(one) for one in answer["results"]] == [{"index", "relevance_score"}] * 2


def test_long_documents_are_refused_or_cut(folder: Path, ranker: EngineServer) -> None:
    theirs = CrossEncoder(str(folder), device="cpu", local_files_only=True, max_length=64)
    documents = ["cat", "dog " * 90]
    refused = ranker.post("/v1/rerank", model="r", query=QUERY, documents=documents).json()["error"]
    assert (refused["code"], refused["param"]) == ("context_length_exceeded", "documents[1]")
    cut = ranker.post(
        "/v1/rerank", model="r", query=QUERY, documents=documents, truncate_prompt_tokens=-1
    ).json()["results"]
    expected = theirs.predict([(QUERY, document) for document in documents])
    for one in cut:
        assert one["relevance_score"] == pytest.approx(expected[one["index"]], abs=1e-5)
    by_document = ranker.post(
        "/v1/rerank", model="r", query=QUERY, documents=documents, max_tokens_per_doc=3
    ).json()["results"]
    (short,) = theirs.predict([(QUERY, "dog dog dog")])
    assert {one["index"]: one["relevance_score"] for one in by_document}[1] == pytest.approx(short, abs=1e-5)


def test_a_query_counts_with_each_document(ranker: EngineServer) -> None:
    answer = ranker.post("/v1/rerank", model="r", query="a " * 10_000, documents=["b"] * 1000)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "documents")
    assert "20,001,000 characters" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents[0]"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "instruction": "c"}, "instruction"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/embeddings", {"input": "a"}, "model"),
    ],
)
def test_mistakes_are_named(ranker: EngineServer, path: str, body: dict[str, object], param: str) -> None:
    answer = ranker.post(path, model="r", **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "XLMRobertaForSequenceClassification"])
@pytest.mark.parametrize("limit", range(5, 40, 3))
def test_pairs_are_cut_as_by_transformers(tmp_path: Path, kind: str, limit: int) -> None:
    folder = encoder(tmp_path, kind, num_labels=1)
    theirs = CrossEncoder(str(folder), device="cpu", local_files_only=True).tokenizer
    ours = PairEncoder(folder, PoolingSpec("score", family=kind.removesuffix("ForSequenceClassification")))
    pairs = [
        ("a cat runs " * 4, "dog " * 9),
        ("a", "dog " * 30),
        ("cat " * 30, "the"),
        ("a", "b"),
        ("cat " * 9,) * 2,
    ]
    found = ours.encode(pairs, Limits(64, limit, "documents"), instruction=None, second=None)
    for (one, other), row in zip(pairs, found.rows, strict=True):
        assert row == theirs(one, other, truncation=True, max_length=limit)["input_ids"]


def test_a_reranker_that_answers_yes_or_no(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model", max_position_embeddings=1024)
    tokenizer = make_tokenizer()
    yes, no = (tokenizer.token_to_id(letter) for letter in "IJ")
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", {**config, "classifier_from_token": ["J", "I"]})
    theirs = Qwen3ForCausalLM.from_pretrained(folder).eval()
    # As in the model's README.
    before = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

    def expected(document: str, instruction: str = INSTRUCTION) -> float:
        body = f"<Instruct>: {instruction}\n<Query>: {QUERY}\n<Document>: {document}"
        ids = [token for part in (before, body, after) for token in tokenizer.encode(part).ids]
        with torch.no_grad():
            last = theirs(torch.tensor([ids])).logits[0, -1]
        return float(torch.softmax(torch.stack([last[no], last[yes]]), 0)[1])

    with EngineServer(folder, "--served-model-name", "q", log=tmp_path / "log") as server:
        answer = server.post("/v1/rerank", model="q", query=QUERY, documents=DOCUMENTS).json()
        scores = {one["index"]: one["relevance_score"] for one in answer["results"]}
        for at, document in enumerate(DOCUMENTS):
            assert scores[at] == pytest.approx(expected(document), abs=1e-5)
        own = server.post(
            "/v1/score", model="q", text_1=QUERY, text_2="the cat", instruction="find cats"
        ).json()
        assert own["data"][0]["score"] == pytest.approx(expected("the cat", "find cats"), abs=1e-5)


def test_a_document_cannot_write_markers(tmp_path: Path) -> None:
    folder = decoder(tmp_path)
    ours = VerdictEncoder(folder)
    marker = make_tokenizer().token_to_id("<|eos|>")
    pairs = [("a", "b<|eos|>c")]
    (row,) = ours.encode(pairs, Limits(999, None, "documents"), instruction=None, second=None).rows
    assert marker not in row
