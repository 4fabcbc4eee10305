"""The tokenizer in a GGUF file, as the files of a Hugging Face folder: tokenizer.json and what goes with it.

Two kinds of vocabulary are known. ``gpt2`` is byte-level BPE with merges, cut beforehand by one of a few regular
expressions that the file merely names (``tokenizer.ggml.pre``). ``llama`` is SentencePiece's BPE: pieces have scores,
and two neighbours merge into the piece of the highest one; missing characters fall back to bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from engine.errors import UnsupportedModel
from engine.weights.gguf import Gguf

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
"""``tokenizer.ggml.token_type``."""

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_LLAMA3 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"{_START}{_UPPER}*{_LOWER}+{_ENDINGS}?|{_START}{_UPPER}+{_LOWER}*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_WHOLE = ("llama-bpe", "llama3", "llama-v3", "pixtral", "tekken")
"""Pre-tokenizers after which words that are tokens are not merged (``ignore_merges``)."""
_PRE = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "pixtral": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "dbrx": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "gpt-2": _GPT2,
    "smollm": _GPT2,
    "tekken": _TEKKEN,
    "gpt-4o": _GPT4O,
}
"""The pre-tokenization pattern, from each tokenizer's own tokenizer.json."""
_NFC = ("qwen2", "deepseek-r1-qwen")
_ENDS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<eos>",
)
"""Control tokens that end an answer, in addition to the file's EOS token."""
_ADVICE = "Put the model's own tokenizer.json beside the file: it is then used."


class Vocabulary:
    def __init__(self, file: Gguf) -> None:
        self._file = file
        self._kind = self._get("model", "(none)")
        self._tokens: list[str] = self._get("tokens", [])
        self._types: list[int] = self._get("token_type", [])
        self._types += [_NORMAL] * (len(self._tokens) - len(self._types))
        spm = self._kind == "llama"
        self._bos = self._named("bos", 1 if spm else None)
        self._eos = self._named("eos", 2 if spm else None)

    def tokenizer_json(self) -> dict[str, Any]:
        """Raises ``UnsupportedModel`` if the file has no tokenizer, or one that is not known."""
        if self._kind not in ("gpt2", "llama") or not self._tokens:
            raise UnsupportedModel(
                f"{self._file.path} has a tokenizer of the kind {self._kind!r}; 'gpt2' and 'llama' are supported. "
                f"{_ADVICE}"
            )
        parts = self._pieces() if self._kind == "llama" else self._byte_level()
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self._added(),
            "post_processor": self._frame(),
            **parts,
        }

    def tokenizer_config(self) -> dict[str, Any]:
        config = {"bos_token": self._text(self._bos), "eos_token": self._text(self._eos)}
        for role, name in (("unk_token", "unknown"), ("pad_token", "padding")):
            if (number := self._named(name)) is not None:
                config[role] = self._text(number)
        template = self._file.metadata.get("tokenizer.chat_template")
        with_tools = self._file.metadata.get("tokenizer.chat_template.tool_use")
        if with_tools:
            named = {"default": template, "tool_use": with_tools}
            config["chat_template"] = [
                {"name": name, "template": source} for name, source in named.items() if source
            ]
        elif template:
            config["chat_template"] = template
        return config

    def generation_config(self) -> dict[str, Any]:
        ends = {self._eos, self._named("eot"), self._named("eom")}
        ends |= {i for i in self._marked(_CONTROL, _USER) if self._tokens[i] in _ENDS}
        return {"eos_token_id": sorted(end for end in ends if end is not None)}

    def _get(self, key: str, default: Any = None) -> Any:
        return self._file.metadata.get(f"tokenizer.ggml.{key}", default)

    def _named(self, role: str, default: int | None = None) -> int | None:
        """The id of the token with this role, if there is one."""
        number = self._get(f"{role}_token_id", default)
        return number if number is not None and 0 <= number < len(self._tokens) else None

    def _text(self, number: int | None) -> str | None:
        return None if number is None else self._tokens[number]

    def _marked(self, *types: int) -> list[int]:
        return [i for i, kind in enumerate(self._types[: len(self._tokens)]) if kind in types]

    def _added(self) -> list[dict[str, Any]]:
        """Tokens that are matched before pre-tokenization."""
        marked = self._marked(_UNKNOWN, _CONTROL, _USER)
        # Phi-3's strip the space after them, which files do not record.
        strips = self._kind == "llama" and self._file.architecture == "phi3"
        plain = ("<unk>", "<s>", "<|endoftext|>")
        return [
            {
                "id": i,
                "content": self._tokens[i],
                "single_word": False,
                "lstrip": False,
                "rstrip": strips and self._tokens[i] not in plain,
                "normalized": False,
                "special": self._types[i] != _USER,
            }
            for i in marked
            if self._tokens[i]
        ]

    def _frame(self) -> dict[str, Any] | None:
        """BOS and EOS around a plain prompt."""
        spm = self._kind == "llama"
        begins = self._get("add_bos_token", spm or self._get("pre") in _WHOLE)
        first = self._bos if begins else None
        last = self._eos if self._get("add_eos_token", False) else None
        if first is None and last is None:
            return None

        def around(sequence: str) -> list[dict[str, Any]]:
            kind = "AB".index(sequence)
            marks = [
                [{"SpecialToken": {"id": self._text(mark), "type_id": kind}}] if mark is not None else []
                for mark in (first, last)
            ]
            return [*marks[0], {"Sequence": {"id": sequence, "type_id": kind}}, *marks[1]]

        used = {
            self._text(mark): {"id": self._text(mark), "ids": [mark], "tokens": [self._text(mark)]}
            for mark in (first, last)
            if mark is not None
        }
        return {
            "type": "TemplateProcessing",
            "single": around("A"),
            "pair": around("A") + around("B"),
            "special_tokens": used,
        }

    def _byte_level(self) -> dict[str, Any]:
        pre = self._get("pre", "(none)")
        if pre not in _PRE:
            raise UnsupportedModel(
                f"{self._file.path} has a tokenizer that cuts texts by {pre!r}; these are supported: "
                f"{', '.join(_PRE)}. {_ADVICE}"
            )
        # Padding up to a round vocabulary size is no tokens.
        vocabulary = {
            token: i for i, token in enumerate(self._tokens) if self._types[i] not in (_UNUSED, _BYTE)
        }
        merges = [merge.split(" ", 1) for merge in self._get("merges", [])]
        cuts: list[dict[str, Any]] = [
            {"type": "Split", "pattern": {"Regex": _PRE[pre]}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ]
        if pre == "smollm":
            cuts.insert(0, {"type": "Digits", "individual_digits": True})
        return {
            "normalizer": {"type": "NFC"} if pre in _NFC else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            },
            "model": _bpe(vocabulary, merges, ignore_merges=pre in _WHOLE),
        }

    def _pieces(self) -> dict[str, Any]:
        vocabulary = {token: i for i, token in enumerate(self._tokens)}
        scores: list[float] = self._get("scores", [])
        if len(scores) != len(self._tokens):
            raise UnsupportedModel(f"{self._file.path} lacks the scores of its tokens. {_ADVICE}")
        prefix = bool(self._get("add_space_prefix", True))
        spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        back: list[dict[str, Any]] = [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        normalizers: list[dict[str, Any]] = [spaces]
        if prefix:
            back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
            normalizers.insert(0, {"type": "Prepend", "prepend": "▁"})
        mergeable = {self._tokens[i]: scores[i] for i in self._marked(_NORMAL, _USER)}
        return {
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": back},
            "model": _bpe(
                vocabulary, _merges(mergeable, vocabulary), unknown=self._text(self._named("unknown", 0))
            ),
        }


def _merges(scores: Mapping[str, float], vocabulary: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """All pairs of pieces that merge into a third, by descending score."""
    for piece in sorted(scores, key=lambda piece: (-scores[piece], vocabulary[piece])):
        cuts = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        pairs = [(left, right) for left, right in cuts if left in scores and right in scores]
        yield from sorted(pairs, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))


def _bpe(
    vocabulary: Mapping[str, int],
    merges: Iterable[Any],
    *,
    unknown: str | None = None,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    """``unknown``: the unk token; with one, missing characters fall back to bytes."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unknown is not None,
        "byte_fallback": unknown is not None,
        "ignore_merges": ignore_merges,
        "vocab": vocabulary,
        "merges": list(merges),
    }
