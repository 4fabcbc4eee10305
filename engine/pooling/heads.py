"""Heads of rerankers: hidden states of a batch to one logit a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from engine.errors import ModelUnavailable, UnsupportedModel
from engine.models.builder import LayerBuilder
from engine.models.config import Raw, integer
from engine.pooling.headless import HeadlessDecoder
from engine.pooling.modernbert import norm_of
from engine.pooling.parts import activation
from engine.pooling.spec import PoolingSpec
from engine.pooling.texts import Texts

Head = Callable[[Tensor, Texts], Tensor]
"""[tokens, width] → [texts]"""


def first_token(build: LayerBuilder, width: int, inner: str, outer: str) -> Head:
    """BERT's and RoBERTa's: a layer with tanh over the first token, then the classifier."""
    dense = build.linear({inner: width}, width, bias=True)
    outer_layer = build.linear({outer: 1}, width, bias=True)
    return lambda hidden, texts: outer_layer(dense(_firsts(hidden, texts)).tanh())[:, 0]


def modernbert(raw: Raw, build: LayerBuilder) -> Head:
    width = integer(raw, "hidden_size")
    dense = build.linear({"head.dense": width}, width, bias=bool(raw.get("classifier_bias")))
    act, norm = activation(raw, "classifier_activation"), norm_of(raw, build, "head.norm")
    classifier = build.linear({"classifier": 1}, width, bias=True)
    pooling = raw.get("classifier_pooling") or "cls"
    if pooling not in ("cls", "mean"):
        raise UnsupportedModel(f"classifier_pooling {pooling!r} is not supported: 'cls' and 'mean' are.")

    def score(hidden: Tensor, texts: Texts) -> Tensor:
        if pooling == "cls":
            x = _firsts(hidden, texts)
        else:
            x = torch.stack([part.mean(0) for part in hidden.split_with_sizes(texts.lengths)])
        return classifier(norm(act(dense(x))))[:, 0]

    return score


def last_token(build: LayerBuilder, width: int) -> Head:
    """Of decoders with a classifier."""
    weight = build.weights.take("score.weight", (1, width)).float()
    return lambda hidden, texts: functional.linear(_lasts(hidden, texts).float(), weight)[:, 0]


def verdict(spec: PoolingSpec, folder: Path, raw: Raw, build: LayerBuilder, decoder: HeadlessDecoder) -> Head:
    """How much likelier the next token is yes than no: of the LM head only these two rows are kept."""
    if spec.verdict is None:
        raise ValueError("not a reranker that answers yes or no")
    ids = [_token(folder, token, decoder.vocab_size) for token in spec.verdict]
    which = torch.tensor(ids, device=build.weights.device)
    if "lm_head.weight" in build.weights and not raw.get("tie_word_embeddings"):
        rows = build.weights.take("lm_head.weight", (decoder.vocab_size, decoder.width))[which]
    else:
        rows = decoder.embedding(which)
    build.weights.ignore("lm_head.weight")
    weight = rows[0].float() - rows[1].float()
    return lambda hidden, texts: _lasts(hidden, texts).float() @ weight


def _token(folder: Path, token: str | int, vocab_size: int) -> int:
    if isinstance(token, str):
        try:
            found = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(token)
        except Exception as error:  # the Rust side raises no narrower class
            raise ModelUnavailable(f"{folder / 'tokenizer.json'} cannot be read: {error}.") from error
    else:
        found = token
    if found is None or not 0 <= found < vocab_size:
        raise UnsupportedModel(f"The vocabulary has no token {token!r}, by which this reranker would answer.")
    return int(found)


def _firsts(hidden: Tensor, texts: Texts) -> Tensor:
    return hidden[texts.positions == 0]


def _lasts(hidden: Tensor, texts: Texts) -> Tensor:
    return hidden[torch.tensor(texts.lengths).cumsum(0).to(hidden.device) - 1]
