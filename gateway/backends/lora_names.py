"""What a server says of its LoRA adapters: which it lists, and which it uses just now.

``/v1/models`` of vLLM (https://docs.vllm.ai/en/latest/features/lora.html), of SGLang
(https://github.com/sgl-project/sglang/pull/12229) and of the bundled engine has an entry for each, whose ``parent`` is
the model that it adapts. vLLM's gauge ``vllm:lora_requests_info`` has in its labels which of them requests run and wait
with, and how many run at once; its value is the time of that
(https://docs.vllm.ai/en/latest/design/metrics/#lora-metrics).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.backends.metrics_poller import samples

MOST_LISTED = 1000
"""Adapters of one server that are looked at,"""
_MOST_ENTRIES = 10 * MOST_LISTED
"""among so many entries: a list may be of a million, and is read while requests wait."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@+-]{0,127}", re.ASCII)
"""No colon: the last one of ``base:adapter`` divides them."""
_LABEL = re.compile(rb'([a-z_]{1,64})="([^"\\]*(?:\\.[^"\\]*)*)"')
_MOST_SLOTS = 4096


@dataclass(frozen=True, slots=True)
class Listing:
    """What one server lists."""

    adapters: Mapping[str, str] = field(default_factory=dict)
    """By name, the model that it says each is of."""
    roots: Mapping[str, str] = field(default_factory=dict)
    """Of its other models, where it has each from: those with one root are one model by several names."""
    left_out: int = 0
    """Entries that are none: without a name that can be asked for, of no model that it lists, or too many."""

    def parent(self, name: str, model: str) -> str | None:
        """The model that its adapter ``name`` is of, where that is ``model``, by whichever of its names."""
        parent = self.adapters.get(name)
        if parent is None or parent == model:
            return parent
        root = self.roots.get(parent)
        return parent if root and self.roots.get(model) == root else None


@dataclass(frozen=True, slots=True)
class LorasInUse:
    names: tuple[str, ...]
    """Those that requests run with, then those that requests wait with."""
    slots: int
    """How many can run at once; 0 where it does not say."""


def read_listing(body: bytes) -> Listing:
    """Raises ValueError for what is no list of models."""
    answer = orjson.loads(body)
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        raise ValueError("there is no list of models in the answer")
    looked_at = entries[:_MOST_ENTRIES]
    found = [one for one in looked_at if isinstance(one, dict) and isinstance(one.get("id"), str)]
    roots = {one["id"]: _text(one.get("root")) for one in found if not one.get("parent")}
    adapters: dict[str, str] = {}
    left_out = len(entries) - len(found)
    for one in found:
        name, parent = one["id"], one.get("parent")
        if not parent:
            continue
        fits = isinstance(parent, str) and parent in roots and name not in roots
        if fits and _NAME.fullmatch(name) and len(adapters) < MOST_LISTED:
            adapters.setdefault(name, parent)
        else:
            left_out += 1
    return Listing(adapters, roots, left_out)


def loras_in_use(page: bytes) -> LorasInUse | None:
    """What a page of vLLM's metrics says; None where it has no such figure, as without ``--enable-lora``. Raises
    ValueError for a value that is no number.

    Each combination of labels that there ever was stays on the page: the one with the latest time counts.
    """
    found = max(
        samples(page, b"vllm:lora_requests_info"),
        key=lambda one: -math.inf if math.isnan(one[1]) else one[1],
        default=None,
    )
    if found is None:
        return None
    known = dict(_LABEL.findall(found[0]))
    names = [
        name
        for label in (b"running_lora_adapters", b"waiting_lora_adapters")
        for one in known.get(label, b"").split(b",")[:MOST_LISTED]
        if _NAME.fullmatch(name := one.strip().decode("utf-8", "replace"))
    ]
    slots = known.get(b"max_lora", b"")
    return LorasInUse(
        tuple(dict.fromkeys(names)), min(int(slots), _MOST_SLOTS) if re.fullmatch(rb"\d{1,9}", slots) else 0
    )


def _text(found: Any) -> str:
    return found if isinstance(found, str) else ""
