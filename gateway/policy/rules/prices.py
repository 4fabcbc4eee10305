"""``prices`` and ``extras``: what would cost nothing, or never be asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from gateway.apis import Api
from gateway.policy.content import list_at, mapping_at
from gateway.policy.limited import has_budgets
from gateway.policy.prices import UNIT_PRICES, is_unpriced, is_unpriced_for, price_of
from gateway.policy.problems import Diagnostic, KeyPath, suggestion
from gateway.policy.rules.subject import Draft, Findings, Valid
from gateway.policy.schema import Price

KNOWN_EXTRAS = (
    *("advisor", "audio", "code_execution", "code_interpreter", "context_management", "file_search"),
    *("image_generation", "inference_geo", "input_audio", "local_shell", "mcp", "mcp_servers", "modalities"),
    *("models", "n", "plugins", "prediction", "provider", "search_parameters", "service_tier", "shell"),
    *("speed", "tool_search", "web_fetch", "web_search", "web_search_options", "web_search_preview"),
)
"""Fields and kinds of tools that providers bill beside tokens."""
_NAMED_FOR: Sequence[tuple[re.Pattern[str], Api]] = (
    (re.compile(r"(?i)\b(tts|speech|kokoro)\b"), "speech"),
    (re.compile(r"(?i)whisper|transcribe"), "transcription"),
    (re.compile(r"(?i)\b(dall-e|gpt-image|imagen|flux|stable-diffusion)"), "image_generation"),
    (re.compile(r"(?i)rerank"), "rerank"),
)
"""What models are asked for, as far as their names tell."""
_QUALITIES = ("low", "medium", "high", "standard", "hd", "auto")
_LEAST = 0.0001
"""Dollars for a million tokens: the cheapest models cost a hundred times as much."""
_TOKEN_PRICES = ("input", "output", "cached_input", "reasoning", "cache_write", "audio_input")
_SIZE = re.compile(r"\d+x\d+")
_DATED = re.compile(r"_\d{8}$")


def price_of_nothing(draft: Draft) -> Findings:
    """A price that matches no target is a mistake: the target that was meant would have none. Which adapters servers
    list shows later."""
    names: dict[str, None] = {}
    listed = mapping_at(mapping_at(draft.content, "adapters"), "listed")
    for model in mapping_at(draft.content, "models").values():
        for target in (*list_at(model, "targets"), mapping_at(mapping_at(model, "rollout"), "to")):
            if isinstance(target, dict) and "backend" in target and "model" in target:
                backend, name = target["backend"], target["model"]
                names |= dict.fromkeys((str(name), f"{backend}/{name}", f"{backend}/*"))
    if not names:
        return
    for name in mapping_at(draft.content, "prices"):
        if name not in names and str(name).partition("/")[0] not in listed:
            known = [one for one in names if not one.endswith("/*")]
            message = f"no target has this model{suggestion(str(name), known)}"
            yield Diagnostic(("prices", name), message)


def unpriced(valid: Valid) -> Findings:
    """Targets without a price, where there are budgets."""
    policy = valid.policy
    if not has_budgets(policy):
        return
    effect = (
        "requests under a budget are refused"
        if policy.on_unpriced == "refuse"
        else "counts as free under every budget"
    )
    for name, model in policy.models.items():
        for index, target in enumerate(model.places):
            if is_unpriced(policy, target):
                message = (
                    f"'{target.model}' has no price: {effect}. Write prices.{target.backend}/{target.model}, one for "
                    f"all of the backend ({target.backend}/*), or default_price"
                )
                here = ("targets", index) if index < len(model.targets) else ("rollout", "to")
                yield Diagnostic(("models", name, *here), message)


def tokens_for_units(valid: Valid) -> Findings:
    """A price for tokens alone, under a budget, of a model whose name says that it is asked for something else."""
    policy = valid.policy
    if not has_budgets(policy) or policy.on_unpriced != "refuse":
        return
    for name, model in policy.models.items():
        for index, target in enumerate(model.targets):
            price = price_of(policy, target)
            apis = [api for words, api in _NAMED_FOR if words.search(f"{name} {target.model}")]
            if price is None or not apis or not is_unpriced_for(policy, target, apis[0]):
                continue
            message = (
                f"'{target.model}' has a price for tokens alone: under a budget, requests counted otherwise are "
                f"refused. Write prices.{target.backend}/{target.model} with '{UNIT_PRICES[apis[0]]}', or with "
                "'only_tokens: true' if its provider bills nothing else"
            )
            yield Diagnostic(("models", name, "targets", index), message)


def misspelt_extra(valid: Valid) -> Findings:
    """Any field may be named, as providers add some; what is nearly one that is known is probably that."""
    for index, name in enumerate(valid.policy.extras):
        undated = _DATED.sub("", name)
        if name in KNOWN_EXTRAS:
            continue
        close = (
            [undated] if undated in KNOWN_EXTRAS else get_close_matches(name, KNOWN_EXTRAS, n=1, cutoff=0.75)
        )
        if close:
            why = (
                "kinds of tools are named without their date"
                if close == [undated]
                else "allows nothing known"
            )
            yield Diagnostic(("extras", index), f"'{name}': {why}; did you mean '{close[0]}'?")


def picture_of_no_quality(valid: Valid) -> Findings:
    """By quality and size, as ``UnitRates`` reads them."""
    for name, price in valid.policy.prices.items():
        for kind in price.image if isinstance(price.image, dict) else ():
            words = [] if kind == "*" else kind.split(" ")
            unknown = [one for one in words if not _SIZE.fullmatch(one) and one not in _QUALITIES]
            if unknown:
                hint = suggestion(unknown[0], _QUALITIES)
                message = f"'{unknown[0]}' is no quality of pictures that is known here{hint}"
                yield Diagnostic(("prices", name, "image", kind), message)


def price_of_one_token(valid: Valid) -> Findings:
    """Other gateways have prices by the token: here such a one is a million times too low."""
    policy = valid.policy
    prices: list[tuple[KeyPath, Price]] = [(("prices", name), price) for name, price in policy.prices.items()]
    if policy.default_price is not None:
        prices.append((("default_price",), policy.default_price))
    for path, price in prices:
        for key in _TOKEN_PRICES:
            value = getattr(price, key)
            if value is not None and 0 < value < _LEAST:
                message = f"is in dollars for a million tokens; is {value:g} the price of one? Write {value * 1e6:g}"
                yield Diagnostic((*path, key), message)


def cached_beyond_input(valid: Valid) -> Findings:
    """What providers cache they sell for less."""
    for name, price in valid.policy.prices.items():
        if price.cached_input is not None and price.cached_input > price.input:
            message = f"{price.cached_input:g} is more than 'input', which is {price.input:g}"
            yield Diagnostic(("prices", name, "cached_input"), message)
