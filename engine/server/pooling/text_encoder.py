"""Texts, and pairs of texts, to the token ids that an embedding model or a reranker expects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Encoding
from tokenizers import Tokenizer as RustTokenizer

from engine.errors import InputTooLong, InvalidRequest, ModelUnavailable, UnsupportedParameter
from engine.pooling.spec import PoolingSpec

# Qwen3-Reranker's (https://huggingface.co/Qwen/Qwen3-Reranker-0.6B).
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@dataclass(slots=True)
class Rows:
    """As ``SubmitTexts`` has them."""

    rows: list[list[int]] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.rows))


class PairEncoder(Protocol):
    def encode(
        self, pairs: Sequence[tuple[str, str]], limits: Limits, *, instruction: str | None, second: int | None
    ) -> Rows:
        """``second``: most tokens of a pair's second text. Blocking. Raises ``InvalidRequest``."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    longest: int
    """Tokens that the model takes."""
    truncate: int | None
    """Tokens that are kept of a longer one; ``None``: it is refused."""
    param: str
    """The field whose texts they are."""

    @classmethod
    def of(cls, longest: int, truncate: int | None, param: str) -> Limits:
        """``truncate`` as a request has it. Raises ``InvalidRequest``."""
        if truncate is not None and truncate > longest:
            raise InvalidRequest(
                f"'truncate_prompt_tokens' is {truncate}, and this model takes {longest} tokens: give at most as many, "
                "or -1.",
                param="truncate_prompt_tokens",
            )
        return cls(longest, longest if truncate == -1 else truncate, param)

    def kept(self, tokens: int, place: str) -> int:
        """How many of ``tokens`` are kept. Raises ``InputTooLong``."""
        if self.truncate is not None:
            return min(tokens, self.truncate)
        if tokens > self.longest:
            raise InputTooLong(tokens, limit=self.longest, param=place)
        return tokens


class TextEncoder:
    """Raises ``ModelUnavailable`` if the folder holds no tokenizer.json."""

    def __init__(self, folder: Path, spec: PoolingSpec) -> None:
        self._tokenizer = load(folder)
        self._lower = spec.lower_case
        self._from_left = settings_of(folder).get("truncation_side") == "left"

    def encode(self, texts: Sequence[str], limits: Limits, *, several: bool) -> Rows:
        """``several``: ``texts`` are a list of the request's. Blocking. Raises ``InvalidRequest``."""
        found = Rows()
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        for at, encoding in enumerate(plain(self._tokenizer, texts, lower=self._lower)):
            place = f"{limits.param}[{at}]" if several else limits.param
            _cut(
                encoding,
                limits.kept(len(encoding) + special, place) - special,
                from_left=self._from_left,
                place=place,
            )
            whole = self._tokenizer.post_process(encoding)
            _add(found, whole.ids, len(whole.ids), place)
        return found


class CrossEncoder:
    """Pairs as BERT and its like are trained on them. The longer text is cut first, as by transformers."""

    def __init__(self, folder: Path, spec: PoolingSpec) -> None:
        self._tokenizer = load(folder)
        self._lower = spec.lower_case
        inputs = settings_of(folder).get("model_input_names")
        self._typed = spec.family == "Bert" and (inputs is None or "token_type_ids" in inputs)

    def encode(
        self, pairs: Sequence[tuple[str, str]], limits: Limits, *, instruction: str | None, second: int | None
    ) -> Rows:
        if instruction is not None:
            raise UnsupportedParameter(
                "This reranker takes no 'instruction': write it into the query, or leave it out.",
                param="instruction",
            )
        found = Rows()
        special = self._tokenizer.num_special_tokens_to_add(is_pair=True)
        firsts = plain(self._tokenizer, [one for one, _ in pairs], lower=self._lower)
        seconds = plain(self._tokenizer, [other for _, other in pairs], lower=self._lower)
        for at, (one, other) in enumerate(zip(firsts, seconds, strict=True)):
            place = f"{limits.param}[{at}]"
            if second is not None:
                _cut(other, second)
            room = limits.kept(len(one) + len(other) + special, place) - special
            if room < len(one) + len(other):
                kept = longest_first(len(one), len(other), max(0, room))
                _cut(one, kept[0])
                _cut(other, kept[1])
            whole = self._tokenizer.post_process(one, other)
            types = whole.type_ids
            first = types.index(1) if self._typed and 1 in types else len(types)
            _add(found, whole.ids, first, place)
        return found


class VerdictEncoder:
    """Pairs as a question to Qwen3-Reranker, which answers yes or no. What a pair contains is text, never a marker."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = load(folder)
        self._before = self._tokenizer.encode(_BEFORE, add_special_tokens=False).ids
        self._after = self._tokenizer.encode(_AFTER, add_special_tokens=False).ids
        self._tokenizer.encode_special_tokens = True

    def encode(
        self, pairs: Sequence[tuple[str, str]], limits: Limits, *, instruction: str | None, second: int | None
    ) -> Rows:
        found = Rows()
        frame = len(self._before) + len(self._after)
        asked = INSTRUCTION if instruction is None else instruction
        questions = [f"<Instruct>: {asked}\n<Query>: {query}\n<Document>: " for query, _ in pairs]
        documents = [document for _, document in pairs]
        if second is not None:
            cut = plain(self._tokenizer, documents)
            ends = [one.offsets[second - 1][1] if len(one) > second else None for one in cut]
            documents = [document[:end] for document, end in zip(documents, ends, strict=True)]
        bodies = plain(
            self._tokenizer,
            [question + document for question, document in zip(questions, documents, strict=True)],
        )
        for at, body in enumerate(bodies):
            place = f"{limits.param}[{at}]"
            _cut(body, limits.kept(len(body) + frame, place) - frame, place=place)
            ids = [*self._before, *body.ids, *self._after]
            _add(found, ids, len(ids), place)
        return found


def load(folder: Path) -> RustTokenizer:
    path = folder / "tokenizer.json"
    try:
        tokenizer = RustTokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises no narrower class
        raise ModelUnavailable(f"{path} cannot be read: {error}.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def plain(tokenizer: RustTokenizer, texts: Sequence[str], *, lower: bool = False) -> list[Any]:
    """Encodings without special tokens. Others run meanwhile: as a batch, it lets go of the interpreter."""
    given = [text.lower() for text in texts] if lower else list(texts)
    return list(tokenizer.encode_batch(given, add_special_tokens=False))


def settings_of(folder: Path) -> dict[str, Any]:
    """Of tokenizer_config.json; empty where there is none."""
    try:
        found = json.loads((folder / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def longest_first(one: int, other: int, room: int) -> tuple[int, int]:
    """What is kept of two texts of so many tokens: as tokenizers' strategy of that name has it."""
    short, long = sorted((one, other))
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short = room // 2
        long = short + room % 2
    return (short, long) if one <= other else (long, short)


def _cut(encoding: Encoding, tokens: int, *, from_left: bool = False, place: str = "") -> None:
    if place and tokens < 1 <= len(encoding):
        raise InvalidRequest(
            "'truncate_prompt_tokens' leaves no room beside the tokens that the model puts around a text: give more.",
            param="truncate_prompt_tokens",
        )
    if tokens < len(encoding):
        encoding.truncate(max(0, tokens), 0, "left" if from_left else "right")


def _add(found: Rows, ids: list[int], first: int, place: str) -> None:
    if not ids:
        raise InvalidRequest(f"'{place}' has no tokens.", param=place)
    found.rows.append(ids)
    found.firsts.append(first)
