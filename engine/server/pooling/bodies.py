"""Bodies of requests for vectors, ranks and scores.

OpenAI's embeddings (https://platform.openai.com/docs/api-reference/embeddings/create); ranks as Jina, Cohere and vLLM
have them (https://jina.ai/reranker, https://docs.cohere.com/reference/rerank); vLLM's scores and fields of its own
(https://docs.vllm.ai/en/latest/models/pooling_models.html); ``prompt_name`` as text-embeddings-inference has it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator

from engine.errors import InvalidRequest
from engine.server.body import StrictBody
from engine.server.fields import ignored

MAX_TEXTS = 2048
"""Of a request, as OpenAI has it."""

Ids = Annotated[list[int], Field(fail_fast=True, min_length=1)]
Strings = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS)]


class PoolingBody(StrictBody):
    """Fields beyond these are ignored or refused, as ``engine/server/fields.py`` says."""

    model_config = ConfigDict(extra="allow")

    model: Annotated[str, Field(min_length=1)]
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    """vLLM's: so many tokens of a text are kept, of -1 as many as the model takes."""

    @property
    def ignored(self) -> list[str]:
        return ignored(self.model_extra or {})

    def check(self) -> None:
        _ = self.ignored
        if self.truncate_prompt_tokens == 0:
            raise InvalidRequest(
                "'truncate_prompt_tokens' must be -1, for as many as the model takes, or above 0.",
                param="truncate_prompt_tokens",
            )


class EmbeddingsBody(PoolingBody):
    input: (
        str | Ids | Strings | Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    prompt_name: str | None = None
    """Which of the model's prompts is put before the texts; empty: none."""

    @field_validator("input", mode="before")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        """An error of the whole list names the list, not each shape that it might have had."""
        if isinstance(value, list) and len(value) > MAX_TEXTS and not isinstance(value[0], int):
            raise ValueError(
                f"there are {len(value)} entries, and {MAX_TEXTS} are the most: send them in parts"
            )
        return value

    def check(self) -> None:
        super().check()
        if "" in self.inputs:
            alone = isinstance(self.input, str)
            where = "input" if alone else f"input[{self.inputs.index('')}]"
            raise InvalidRequest(f"'{where}' is an empty text, which has no embedding.", param=where)

    @property
    def inputs(self) -> list[str] | list[list[int]]:
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [self.input]  # type: ignore[list-item]
        return self.input  # type: ignore[return-value]


class PairsBody(PoolingBody):
    instruction: str | None = None
    """What relevance means, to rerankers that take an instruction."""
    use_activation: bool | None = None
    """False: the model's own numbers, not those between 0 and 1."""


class RerankBody(PairsBody):
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[
        list[str | dict[str, Any]], Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS)
    ]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None

    def check(self) -> None:
        super().check()
        for at, document in enumerate(self.documents):
            if isinstance(document, dict) and not isinstance(document.get("text"), str):
                raise InvalidRequest(
                    "A document is a text, or an object with a 'text'.", param=f"documents[{at}]"
                )

    @property
    def texts(self) -> list[str]:
        return [one if isinstance(one, str) else one["text"] for one in self.documents]


class ScoreBody(PairsBody):
    text_1: str | Strings
    text_2: str | Strings

    def check(self) -> None:
        super().check()
        one, other = self._lists()
        if len(one) not in (1, len(other)):
            raise InvalidRequest(
                f"'text_1' has {len(one)} texts, and 'text_2' has {len(other)}: 'text_1' must have one, or as many.",
                param="text_1",
            )

    @property
    def pairs(self) -> list[tuple[str, str]]:
        one, other = self._lists()
        return list(zip(one * len(other) if len(one) == 1 else one, other, strict=True))

    def _lists(self) -> tuple[list[str], list[str]]:
        return (
            [self.text_1] if isinstance(self.text_1, str) else self.text_1,
            [self.text_2] if isinstance(self.text_2, str) else self.text_2,
        )
