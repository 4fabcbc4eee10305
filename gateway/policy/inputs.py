"""What kinds of media a target takes: as its model's policy says, or else by what its backend is known to take."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.media import MEDIA, MediaKind
from gateway.policy.schema import Policy, Target

_NONE: frozenset[MediaKind] = frozenset()
BY_KIND: Mapping[str, frozenset[MediaKind]] = {
    "engine": _NONE,
    "sidecar": _NONE,
    "anthropic": frozenset({"image", "file"}),
}
"""Kinds of backends whose APIs do not take all; of the others it depends on the model."""
BY_PRESET: Mapping[str, frozenset[MediaKind]] = {
    "cohere": frozenset({"image"}),
    "deepseek": frozenset({"image"}),
    "groq": frozenset({"image"}),
    "mistral": frozenset({"image", "audio", "file"}),
    "together": frozenset({"image", "audio", "video"}),
    "xai": frozenset({"image", "file"}),
}


def taken(policy: Policy, model: str, target: Target) -> frozenset[MediaKind]:
    """The kinds of media that ``target`` of ``model`` may be sent."""
    if (named := policy.models[model].input) is not None:
        return frozenset(kind for kind in named if kind != "text")
    backend = policy.backends[target.backend]
    preset = getattr(backend, "preset", None)
    return BY_PRESET.get(preset, MEDIA) if preset is not None else BY_KIND.get(backend.kind, MEDIA)
