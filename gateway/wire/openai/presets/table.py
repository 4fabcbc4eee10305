"""The presets, by the name that a policy gives them."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.policy.schema.backends import PresetName
from gateway.wire.openai.presets.cohere import COHERE
from gateway.wire.openai.presets.deepseek import DEEPSEEK
from gateway.wire.openai.presets.groq import GROQ
from gateway.wire.openai.presets.mistral import MISTRAL
from gateway.wire.openai.presets.openrouter import OPENROUTER
from gateway.wire.openai.presets.preset import Preset
from gateway.wire.openai.presets.together import TOGETHER
from gateway.wire.openai.presets.xai import XAI

PRESETS: Mapping[PresetName, Preset] = {
    "cohere": COHERE,
    "deepseek": DEEPSEEK,
    "groq": GROQ,
    "mistral": MISTRAL,
    "openrouter": OPENROUTER,
    "together": TOGETHER,
    "xai": XAI,
}
