"""``guards.<name>.judge``: a model that says whether a text is harmful, and in what way."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from gateway.policy.schema.values import Count, Duration, Frozen, Name, Share

Harm = Literal[
    "violent_crimes",
    "non_violent_crimes",
    "sex_crimes",
    "child_sexual_exploitation",
    "indiscriminate_weapons",
    "self_harm",
    "hate",
    "sexual",
    "privacy",
    "intellectual_property",
    "defamation",
    "specialized_advice",
    "elections",
    "code_interpreter_abuse",
    "prompt_injection",
]
"""The hazards of MLCommons' AILuminate 1.0 in plain names, two that Llama Guard 3 adds, and one of our own; what each
means is in ``gateway.guards.scanners.harms``."""
HarmAction = Literal["block", "flag", "ignore"]


class Judge(Frozen):
    """How the model is asked, how often, and what becomes of each category."""

    model: Name
    """A public model."""
    format: Literal["llama_guard", "json"] = "llama_guard"
    """``json`` asks any chat model, with the categories in words."""
    categories: dict[Harm, HarmAction] = Field(default={})
    otherwise: HarmAction | None = None
    """For categories that are not named; None: the guard's own action."""
    unsure: tuple[Share, Share] | None = None
    """Probabilities, as at a threshold of 0.5, between which it is asked. None: what the fast check leaves
    open, or 0.2 to 0.8 where a model comes between."""
    max_per_request: Count = 32
    """Questions about one request and its answer."""
    per_minute: Count = 600
    """Questions of each worker."""
    remember: Duration = 600.0
    """How long the verdict on a text holds for its tenant, in each worker."""
    max_tokens: Count | None = None
    """Of its answer. None: 64 for ``llama_guard``, 512 for ``json``."""

    @property
    def has_remedies(self) -> bool:
        """Whether a category may have another action than the guard's."""
        return bool(self.categories) or self.otherwise is not None

    def action_on(self, category: str) -> HarmAction | None:
        """None: the guard's own."""
        named: dict[str, HarmAction] = dict(self.categories)  # type: ignore[arg-type]
        return named.get(category, self.otherwise)

    @model_validator(mode="after")
    def _in_order(self) -> Judge:
        if self.unsure is not None and self.unsure[0] >= self.unsure[1]:
            raise ValueError("'unsure' should have the lower probability first, such as [0.2, 0.8]")
        return self


def _by_name(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


NamedJudge = Annotated[Judge, BeforeValidator(_by_name, json_schema_input_type=Name | Judge)]
"""Its name alone stands for one with the defaults."""
