"""``models.<name>.cascade``: steps that are never asked, and keys that have no effect on a cascade."""

from __future__ import annotations

from gateway.policy.content import list_at, mapping_at, mappings_at
from gateway.policy.problems import Diagnostic, KeyPath
from gateway.policy.rules.subject import Draft, Findings, Valid
from gateway.policy.schema import AnthropicBackend, BedrockBackend, FakeBackend, Model

_KEYS = ("cascade", "aliases", "residency")
_WITHOUT_LOGPROBS = FakeBackend | AnthropicBackend | BedrockBackend


def keys_of_a_cascade(draft: Draft) -> Findings:
    """Keys that have no effect on a cascade."""
    for name, model in mapping_at(draft.content, "models").items():
        steps = list_at(model, "cascade")
        if not steps or list_at(model, "targets"):
            continue
        for key in model:
            if key in Model.model_fields and key not in _KEYS:
                message = "has no effect on a cascade; write it at the models that its steps name"
                yield Diagnostic(("models", name, key), message)
        for key in ("when", "escalate"):
            if isinstance(steps[-1], dict) and key in steps[-1]:
                message = "has no effect on the last step, which takes whatever is left"
                yield Diagnostic(("models", name, "cascade", len(steps) - 1, key), message)


def step_that_only_embeds(draft: Draft) -> Findings:
    """A cascade's step must answer, which an embedder cannot."""
    models = mappings_at(draft.content, "models")
    embedders = {
        name
        for name, backend in mappings_at(draft.content, "backends").items()
        if backend.get("kind") == "sidecar"
    }
    for name, model in models.items():
        for index, step in enumerate(list_at(model, "cascade")):
            word = step.get("model") if isinstance(step, dict) else None
            targets = list_at(models.get(str(word)), "targets")
            if any(isinstance(target, dict) and target.get("backend") in embedders for target in targets):
                yield Diagnostic(
                    ("models", name, "cascade", index, "model"),
                    f"'{word}' only makes embeddings; it cannot answer",
                )


def unreachable_step(valid: Valid) -> Findings:
    """Conditions under which no request begins with that step."""
    policy = valid.policy
    for name, model in policy.models.items():
        taken = 0.0
        for index, step in enumerate(model.cascade[:-1]):
            path: KeyPath = ("models", name, "cascade", index, "when", "complexity", "below")
            if step.when is None:
                taken = 1.0
            elif taken >= 1.0:
                yield Diagnostic(path[:-2], "has no effect: every request begins with a step before this one")
            elif (below := step.when.complexity.below) <= taken:
                message = f"no request begins here: those below {taken:g} begin with a step before this one"
                yield Diagnostic(
                    path, message if taken else "no request begins here: complexity is never below 0"
                )
            else:
                taken = below


def no_log_probabilities(valid: Valid) -> Findings:
    policy = valid.policy
    for name, model in policy.models.items():
        for index, step in enumerate(model.cascade[:-1]):
            asked = policy.models.get(step.model)
            if step.escalate.mean_logprob_below is None or asked is None:
                continue
            backends = {target.backend: policy.backends[target.backend] for target in asked.targets}
            if backends and all(isinstance(backend, _WITHOUT_LOGPROBS) for backend in backends.values()):
                message = f"has no effect: {', '.join(backends)} returns no log-probabilities"
                yield Diagnostic(
                    ("models", name, "cascade", index, "escalate", "mean_logprob_below"), message
                )
