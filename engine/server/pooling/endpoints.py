"""Requests for vectors, ranks and scores, from the body to the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from engine.errors import InvalidRequest, ModelNotFound, UnsupportedParameter
from engine.pooling.client import PoolingClient
from engine.pooling.messages import PoolingReady
from engine.pooling.spec import PoolingSpec
from engine.server.body import read
from engine.server.fields import listed
from engine.server.hints import Hints
from engine.server.pooling import answers
from engine.server.pooling.bodies import EmbeddingsBody, PairsBody, PoolingBody, RerankBody, ScoreBody
from engine.server.pooling.metrics import PoolingMetrics
from engine.server.pooling.text_encoder import Limits, PairEncoder, Rows, TextEncoder
from engine.server.prepare import IGNORED

_MOST = 2**24
"""Characters of a request's pairs: each has the query, which a body has but once."""


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class ModelNames:
    name: str
    also: Collection[str] | None
    """Further names of the model; ``None``: any."""

    def check(self, model: str) -> None:
        """Raises ``ModelNotFound``."""
        if model != self.name and self.also is not None and model not in self.also:
            raise ModelNotFound(
                f"The model '{model}' does not exist here; '{self.name}' does.", param="model"
            )


@dataclass(slots=True)
class _Endpoints:
    client: PoolingClient
    ready: PoolingReady
    spec: PoolingSpec
    names: ModelNames
    metrics: PoolingMetrics

    async def run(self, rows: Rows, hints: Hints, size: int | None = None) -> list[bytes]:
        self.metrics.prompt_tokens.inc(rows.tokens)
        request = self.client.submit(
            rows.rows, rows.firsts, priority=hints.priority, deadline=hints.deadline, size=size
        )
        try:
            return await request.values()
        finally:
            request.close()

    def limits(self, body: PoolingBody, param: str) -> Limits:
        return Limits.of(self.ready.max_model_len, body.truncate_prompt_tokens, param)


@dataclass(slots=True)
class Embeddings(_Endpoints):
    encoder: TextEncoder

    async def embed(self, data: bytes, hints: Hints) -> Answer:
        """``/v1/embeddings``. Raises ``EngineError``."""
        body = read(EmbeddingsBody, data)
        self.names.check(body.model)
        size = self._size(body.dimensions)
        rows = await self._rows(body)
        vectors = await self.run(rows, hints, size)
        base64 = body.encoding_format == "base64"
        return Answer(
            await answers.embeddings(body.model, vectors, rows.tokens, base64=base64), _ignored(body)
        )

    async def _rows(self, body: EmbeddingsBody) -> Rows:
        limits, given = self.limits(body, "input"), body.inputs
        several = isinstance(body.input, list) and not isinstance(body.input[0], int)
        if not isinstance(given[0], str):
            return self._given_ids([list(map(int, ids)) for ids in given], limits, several=several)
        prompt = self._prompt(body.prompt_name)
        texts = [f"{prompt}{text}" for text in given]
        return await asyncio.to_thread(self.encoder.encode, texts, limits, several=several)

    def _given_ids(self, given: list[list[int]], limits: Limits, *, several: bool) -> Rows:
        """Token ids are taken as they are."""
        found = Rows()
        for at, ids in enumerate(given):
            place = f"input[{at}]" if several else "input"
            if min(ids) < 0 or max(ids) >= self.ready.vocab_size:
                raise InvalidRequest(f"Token ids must be from 0 to {self.ready.vocab_size - 1}.", param=place)
            found.rows.append(ids[: limits.kept(len(ids), place)])
            found.firsts.append(len(found.rows[-1]))
        return found

    def _prompt(self, name: str | None) -> str:
        if name is None:
            return self.spec.prompts.get(self.spec.default_prompt or "", "")
        if name and name not in self.spec.prompts:
            known = ", ".join(f"'{one}'" for one in self.spec.prompts) or "none"
            raise InvalidRequest(f"The model has no prompt '{name}'; it has {known}.", param="prompt_name")
        return self.spec.prompts.get(name, "")

    def _size(self, wanted: int | None) -> int | None:
        width, spec = self.ready.width, self.spec
        if wanted is None or wanted == width:
            return None
        if not spec.matryoshka:
            raise UnsupportedParameter(
                f"This model makes vectors of {width} dimensions and no others: it is not known to bear cutting "
                "(--matryoshka says that it does). Leave 'dimensions' out.",
                param="dimensions",
            )
        if wanted > width or (spec.sizes and wanted not in spec.sizes):
            sizes = f"of {', '.join(map(str, spec.sizes))}" if spec.sizes else f"from 1 to {width}"
            raise InvalidRequest(
                f"'dimensions' is {wanted}; this model has vectors {sizes}.", param="dimensions"
            )
        return wanted


@dataclass(slots=True)
class Ranks(_Endpoints):
    encoder: PairEncoder

    async def rerank(self, data: bytes, hints: Hints) -> Answer:
        """``/v1/rerank``. Raises ``EngineError``."""
        body = read(RerankBody, data)
        pairs = [(body.query, text) for text in body.texts]
        scores, tokens = await self._scores(body, pairs, hints, "documents", body.max_tokens_per_doc)
        return Answer(answers.ranks(body, scores, tokens), _ignored(body))

    async def score(self, data: bytes, hints: Hints) -> Answer:
        """``/v1/score``. Raises ``EngineError``."""
        body = read(ScoreBody, data)
        scores, tokens = await self._scores(body, body.pairs, hints, "text_2", None)
        return Answer(answers.scores_of_pairs(body.model, scores, tokens), _ignored(body))

    async def _scores(
        self,
        body: PairsBody,
        pairs: list[tuple[str, str]],
        hints: Hints,
        param: str,
        second: int | None,
    ) -> tuple[list[float], int]:
        self.names.check(body.model)
        limits = self.limits(body, param)
        if (count := sum(len(one) + len(other) for one, other in pairs)) > _MOST:
            raise InvalidRequest(
                f"The pairs have {count:,} characters together, each with its query, and {_MOST:,} are the most: send "
                "them in several requests.",
                param=param,
            )
        rows = await asyncio.to_thread(
            self.encoder.encode, pairs, limits, instruction=body.instruction, second=second
        )
        sigmoid = self.spec.sigmoid if body.use_activation is None else body.use_activation
        logits = await self.run(rows, hints)
        return [answers.score(logit, sigmoid=sigmoid) for logit in logits], rows.tokens


def _ignored(body: PoolingBody) -> dict[str, str]:
    names = listed(body.ignored)
    return {IGNORED: names} if names else {}
