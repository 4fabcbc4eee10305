"""How many tokens a picture takes, by the rule that its model's provider documents."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from gateway.metering.image_size import size_in_base64, size_in_url
from gateway.types import Json

USUAL = 1105
"""Of a picture of which nothing is known: four tiles of gpt-4o."""
MOST = 48_200
"""Eight tiles of gpt-4o-mini: no model is known to take more."""
MARGIN = 1.25
"""Bills have been a fifth above what the rule said."""
KINDS = frozenset({"image_url", "input_image", "image"})
"""Parts of a content that are pictures."""


class ImageRule(Protocol):
    """Of one family of models."""

    @property
    def most(self) -> int:
        """Of any picture."""
        ...

    def tokens(self, width: int, height: int) -> float: ...
    def small(self) -> float | None:
        """With ``detail: low``; None where that means nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Tiles:
    """OpenAI's: fitted into 2,048 squared, then to 768 at its shorter side, in tiles of 512
    (https://platform.openai.com/docs/guides/images-vision#calculating-costs)."""

    base: int
    tile: int

    @property
    def most(self) -> int:
        return int(MARGIN * (self.base + 8 * self.tile))

    def tokens(self, width: int, height: int) -> float:
        scale = min(1.0, 2048 / max(width, height))
        scale = min(scale, 768 / min(width, height))
        return self.base + self.tile * math.ceil(width * scale / 512) * math.ceil(height * scale / 512)

    def small(self) -> float | None:
        return self.base


@dataclass(frozen=True, slots=True)
class Patches:
    """OpenAI's smaller models': squares of 32, 1,536 at most, by a factor."""

    factor: float

    @property
    def most(self) -> int:
        return int(MARGIN * self.factor * 1536)

    def tokens(self, width: int, height: int) -> float:
        return self.factor * min(1536, math.ceil(width / 32) * math.ceil(height / 32))

    def small(self) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class Pixels:
    """Anthropic's: a token for 750 pixels (https://platform.claude.com/docs/en/build-with-claude/vision)."""

    most: int = 5_000
    """The largest of the newest models has 4,784."""

    def tokens(self, width: int, height: int) -> float:
        return min(width * height / 750, float(self.most))

    def small(self) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class Squares:
    """Gemini's: 258, if both sides have at most 384 pixels; else for each square of two thirds of the shorter side,
    256 to 768 pixels (https://ai.google.dev/gemini-api/docs/tokens)."""

    most: int = MOST

    def tokens(self, width: int, height: int) -> float:
        if max(width, height) <= 384:
            return 258
        side = min(768, max(256, min(width, height) * 2 // 3))
        return min(258 * math.ceil(width / side) * math.ceil(height / side), self.most)

    def small(self) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class Budget:
    """Gemini's since 3: what it takes at its usual resolution at most, whatever the size
    (https://ai.google.dev/gemini-api/docs/media-resolution)."""

    most: int

    def tokens(self, width: int, height: int) -> float:
        return self.most

    def small(self) -> float | None:
        return None


_RULES: tuple[tuple[str, ImageRule], ...] = (
    (r"gpt-4o-mini", Tiles(2833, 5667)),
    (r"gpt-(4\.1|5)-mini", Patches(1.62)),
    (r"gpt-(4\.1|5)-nano", Patches(2.46)),
    (r"o4-mini", Patches(1.72)),
    (r"gpt-5", Tiles(70, 140)),
    (r"gpt-4(o|\.1|\.5|-turbo)|chatgpt-4o", Tiles(85, 170)),
    (r"o[13]", Tiles(75, 150)),
    (r"claude", Pixels()),
    (r"gemini-([3-9]|[1-9]\d)", Budget(1120)),
    (r"gemini", Squares()),
)
_NAMES = tuple((re.compile(rf"(?:^|[/.:]){name}(?![a-z0-9])"), rule) for name, rule in _RULES)


@cache
def rule_of(model: str) -> ImageRule | None:
    """By the name that the provider knows, resellers' prefixes included; None where no rule is known."""
    return next((rule for name, rule in _NAMES if name.search(model)), None)


def most_of(kind: str, model: str) -> int:
    """Tokens that any picture takes at most, for a ``model`` of a backend of this ``kind``."""
    rule = rule_of(model)
    if rule is not None:
        return rule.most
    return Pixels().most if kind == "anthropic" else MOST


def tokens_of(part: Mapping[str, Json], model: str) -> float:
    """About how many tokens ``part``, of one of ``KINDS``, takes."""
    rule = rule_of(model)
    if rule is None:
        return USUAL
    given = part.get("image_url") or part.get("source") or part
    where = given if isinstance(given, dict) else {"url": given}
    detail = where.get("detail") or part.get("detail")
    if detail == "low" and (small := rule.small()) is not None:
        return small
    size = None
    if isinstance(url := where.get("url"), str):
        size = size_in_url(url)
    elif isinstance(data := where.get("data"), str):
        size = size_in_base64(data)
    return min(USUAL, rule.most) if size is None else rule.tokens(*size)
