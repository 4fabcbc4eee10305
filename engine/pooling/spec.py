"""Which folders hold an embedding model or a reranker, and what their files say of pooling, heads and prompts.

Files of sentence-transformers (https://sbert.net/docs/package_reference/sentence_transformer/models.html):
``modules.json``, ``1_Pooling/config.json``, ``sentence_bert_config.json``, ``config_sentence_transformers.json``. The
kinds that go without them are known by ``architectures`` of config.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.errors import ModelUnavailable, UnsupportedModel

Task = Literal["embed", "score"]

ENCODERS = ("Bert", "Roberta", "XLMRoberta", "ModernBert")
"""Families without a decoder's mask; the others are those that generate."""
MODES = ("cls", "mean", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean")
_KINDS = ("ForSequenceClassification", "ForMaskedLM", "ForCausalLM", "Model")
_ACTIVATIONS = {"Sigmoid": True, "Identity": False}
_LEGACY_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class PoolingSpec:
    task: Task
    family: str
    """Such as ``Bert`` or ``Qwen3``."""
    modes: tuple[str, ...] = ()
    """Of ``MODES``, whose vectors are joined; none for a reranker."""
    after: tuple[str, ...] = ()
    """What becomes of the pooled vector, in order: folders of dense layers, and ``""`` for length 1."""
    verdict: tuple[str | int, str | int] | None = None
    """Of a reranker that answers yes or no: these two tokens, or their ids."""
    sigmoid: bool = True
    """Whether a score goes through a sigmoid."""
    max_tokens: int | None = None
    """The longest text that the model was trained for, if its files say so."""
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    """What is put before a text, by name,"""
    default_prompt: str | None = None
    """and the one that is, where a request names none."""
    matryoshka: bool = False
    """Whether a vector's prefix is a good vector, too (https://arxiv.org/abs/2205.13147),"""
    sizes: tuple[int, ...] = ()
    """and which prefixes are, if the model says so."""

    @property
    def decoder(self) -> bool:
        return self.family not in ENCODERS

    @property
    def normalised(self) -> bool:
        return "" in self.after


def find_spec(folder: Path, task: str = "auto", *, matryoshka: bool = False) -> PoolingSpec | None:
    """``None`` for a model that generates text. ``task``: ``embed``, ``score`` or ``generate`` where the files do not
    tell; ``matryoshka``: as ``PoolingSpec`` has it, where they do not say.

    Raises ``ModelUnavailable`` or ``UnsupportedModel``.
    """
    if task == "generate":
        return None
    try:
        return _find(folder, task, matryoshka)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise UnsupportedModel(f"A file of {folder} holds a value that makes no sense: {error}.") from error


def _find(folder: Path, task: str, matryoshka: bool) -> PoolingSpec | None:
    config = _object(folder / "config.json")
    named = config.get("architectures") or []
    architecture = str(named[0]) if isinstance(named, list) and named else ""
    kind = next((kind for kind in _KINDS if architecture.endswith(kind)), "")
    family = architecture.removesuffix(kind)
    modules = _modules(folder)
    settings = _object(folder / "config_sentence_transformers.json")
    lengths = _object(folder / "sentence_bert_config.json")
    common: dict[str, Any] = {
        "family": family,
        "max_tokens": lengths.get("max_seq_length"),
        "lower_case": bool(lengths.get("do_lower_case")),
    }
    verdict = _verdict(folder, config, modules)
    scores = kind == "ForSequenceClassification" or verdict is not None
    if task == "score" and kind == "ForCausalLM" and verdict is None:
        verdict = ("yes", "no")
    found = _task(task, scores, kind, family, modules)
    if found == "score":
        if verdict is not None and family != "Qwen3":
            raise UnsupportedModel(
                f"{architecture} cannot rank here: of rerankers that answer yes or no those of Qwen3 are supported."
            )
        if verdict is None and kind != "ForSequenceClassification":
            raise UnsupportedModel(
                f"{architecture} has no head that scores pairs: --task score is for cross-encoders "
                "(…ForSequenceClassification) and for Qwen3-Reranker."
            )
        labels = len(config.get("id2label") or {}) or int(config.get("num_labels") or 2)
        if verdict is None and labels != 1:
            raise UnsupportedModel(f"This classifier has {labels} labels: a reranker has one.")
        return PoolingSpec("score", verdict=verdict, sigmoid=_sigmoid(config, settings), **common)
    if found is None:
        return None
    if family not in ENCODERS and config.get("is_causal") is False:
        raise UnsupportedModel(
            "Decoders that attend in both directions (is_causal: false) are not supported."
        )
    default = ("lasttoken",) if family not in ENCODERS else ("mean",)
    after = _after(modules) if modules else (("",) if family not in ENCODERS else ())
    sizes = config.get("matryoshka_dimensions") or ()
    return PoolingSpec(
        "embed",
        modes=_modes(folder, modules) or default,
        after=after,
        prompts={str(name): str(text) for name, text in (settings.get("prompts") or {}).items()},
        default_prompt=settings.get("default_prompt_name"),
        matryoshka=matryoshka or bool(config.get("is_matryoshka") or sizes),
        sizes=tuple(int(size) for size in sizes),
        **common,
    )


def _task(task: str, scores: bool, kind: str, family: str, modules: list[tuple[str, str]]) -> Task | None:
    if task == "embed" or task == "score":
        return task
    if scores:
        return "score"
    if any(name == "Pooling" for name, _ in modules) or kind == "Model" or family in ENCODERS:
        return "embed"
    return None


def _modules(folder: Path) -> list[tuple[str, str]]:
    """(class, folder) of each module, in order; none without a ``modules.json``."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    listed = _json(path)
    try:
        return [(str(one["type"]).rpartition(".")[2], str(one.get("path") or "")) for one in listed]
    except (TypeError, KeyError, AttributeError) as error:
        raise ModelUnavailable(
            f"{path} is not a list of modules as sentence-transformers writes it."
        ) from error


def _modes(folder: Path, modules: list[tuple[str, str]]) -> tuple[str, ...]:
    at = next((path for name, path in modules if name == "Pooling"), None)
    if at is None:
        return ()
    config = _object(folder / at / "config.json")
    given = config.get("pooling_mode")
    if given is None:
        modes = tuple(mode for key, mode in _LEGACY_MODES.items() if config.get(key)) or ("mean",)
    else:
        modes = tuple(given) if isinstance(given, list) else (str(given),)
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise UnsupportedModel(f"Pooling by {unknown[0]!r} is not supported; these are: {', '.join(MODES)}.")
    if config.get("include_prompt") is False:
        raise UnsupportedModel(
            "Pooling without the prompt's tokens (include_prompt: false) is not supported."
        )
    return modes


def _after(modules: list[tuple[str, str]]) -> tuple[str, ...]:
    names = [name for name, _ in modules]
    if names[:2] != ["Transformer", "Pooling"] or modules[0][1]:
        raise UnsupportedModel(
            f"modules.json has {', '.join(names)}: a Transformer in the folder itself, Pooling, and then Dense and "
            "Normalize are supported."
        )
    after = []
    for name, path in modules[2:]:
        if name not in ("Dense", "Normalize"):
            raise UnsupportedModel(
                f"modules.json has {name}, which is not supported: Dense and Normalize are."
            )
        after.append(path if name == "Dense" else "")
    return tuple(after)


def _verdict(
    folder: Path, config: Mapping[str, Any], modules: list[tuple[str, str]]
) -> tuple[str | int, str | int] | None:
    """As sentence-transformers' ``LogitScore`` says it, or vLLM's ``classifier_from_token``."""
    if at := next((path for name, path in modules if name == "LogitScore"), None):
        scoring = _object(folder / at / "config.json")
        if scoring.get("true_token_id") is None or scoring.get("false_token_id") is None:
            raise UnsupportedModel(
                "LogitScore with one token is not supported: one for yes and one for no are."
            )
        return int(scoring["true_token_id"]), int(scoring["false_token_id"])
    given = config.get("classifier_from_token")
    if isinstance(given, list) and len(given) == 2:
        return str(given[1]), str(given[0])
    return None


def _sigmoid(config: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    nested = config.get("sentence_transformers")
    given = (
        (nested.get("activation_fn") if isinstance(nested, dict) else None)
        or settings.get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
        or "Sigmoid"
    )
    name = str(given).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(
            f"Scores through {given} are not supported; these are: {', '.join(_ACTIVATIONS)}."
        )
    return _ACTIVATIONS[name]


def _object(path: Path) -> dict[str, Any]:
    """Empty where there is no such file."""
    if not path.is_file():
        return {}
    found = _json(path)
    if not isinstance(found, dict):
        raise ModelUnavailable(f"{path} is not a JSON object.")
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}.") from error
