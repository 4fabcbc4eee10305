"""``guards`` that look for personal data and topics: what nobody can find, and patterns that take too long."""

from __future__ import annotations

from contextlib import suppress

from pydantic import ValidationError

from gateway.pii.entities import asked_of_sidecar, known_entities, unknown_entities
from gateway.policy.problems import Diagnostic
from gateway.policy.rules.subject import Draft, Findings, Valid
from gateway.policy.schema import PiiGuard, SidecarSettings, TopicsGuard
from gateway.regex.backtracking import unbounded
from gateway.regex.linear import are_linear

_CODES = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id
ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu
lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu
rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to
tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
LANGUAGES = frozenset(_CODES.split())
"""Two letters each (ISO 639-1)."""
_MEANT = {
    "cn": "zh",
    "cz": "cs",
    "dk": "da",
    "gb": "en",
    "gr": "el",
    "jp": "ja",
    "kp": "ko",
    "ua": "uk",
    "us": "en",
    "vn": "vi",
}
"""Countries that are taken for languages."""
_UNPROVEN = (
    "may take too long on some texts; bound its repetitions, as in '\\s{1,4}' for '\\s+' and '\\d{1,9}' for '\\d*' "
    "(see 'Long texts' in docs/guards.md), or write it as a pattern of a 'topics' guard"
)


def unknown_entity(draft: Draft) -> Findings:
    """Every entity has a recognizer."""
    with suppress(ValidationError):
        sidecar = SidecarSettings.model_validate(draft.content.get("sidecar") or {})
        for name, guard in draft.guards.items():
            if guard.get("kind") == "pii":
                with suppress(ValidationError):
                    pii = PiiGuard.model_validate(guard)
                    for problem in unknown_entities(
                        pii.entities,
                        pii.checks,
                        pii.languages,
                        sidecar.spacy,
                        tagger=sidecar.embedder.is_builtin,
                    ):
                        yield Diagnostic(("guards", name, "entities"), problem)
                    for label in set(pii.patterns) & known_entities():
                        message = f"'{label}' is an entity that 'entities' may name; choose another label"
                        yield Diagnostic(("guards", name, "patterns", label), message)


def slow_pattern(draft: Draft) -> Findings:
    """Patterns whose matching time is not linear."""
    for name, guard in draft.guards.items():
        if guard.get("kind") == "topics":
            with suppress(ValidationError):
                for index, pattern in enumerate(TopicsGuard.model_validate(guard).patterns):
                    if problem := unbounded(pattern):
                        yield Diagnostic(("guards", name, "patterns", index), problem)


def unproven_pattern(draft: Draft) -> Findings:
    """Patterns of ``pii`` guards run on the event loop, whatever the text: they must be proven fast."""
    for name, guard in draft.guards.items():
        if guard.get("kind") == "pii":
            with suppress(ValidationError):
                patterns = PiiGuard.model_validate(guard).patterns
                slow = [label for label, pattern in patterns.items() if not are_linear([pattern])]
                if not slow and not are_linear(patterns.values()):
                    slow = [*patterns][-1:]  # together they are too many
                for label in slow:
                    yield Diagnostic(("guards", name, "patterns", label), _UNPROVEN)


def unknown_language(valid: Valid) -> Findings:
    for name, guard in valid.policy.guards.items():
        for index, language in enumerate(guard.languages if isinstance(guard, PiiGuard) else ()):
            if language not in LANGUAGES:
                yield Diagnostic(("guards", name, "languages", index), _no_language(language))
    for language in valid.policy.sidecar.spacy:
        if language not in LANGUAGES:
            yield Diagnostic(("sidecar", "spacy", language), _no_language(language))


def unused_spacy(valid: Valid) -> Findings:
    """Models of languages in which no guard looks for what they find."""
    used = {
        language
        for guard in valid.policy.guards.values()
        if isinstance(guard, PiiGuard) and asked_of_sidecar(guard.entities, guard.checks)
        for language in guard.languages
    }
    for language in valid.policy.sidecar.spacy:
        if language in LANGUAGES and language not in used:
            yield Diagnostic(
                ("sidecar", "spacy", language),
                f"has no effect: no 'pii' guard that looks for names has '{language}' under 'languages'",
            )


def _no_language(code: str) -> str:
    meant = _MEANT.get(code)
    return f"no language has the code '{code}' (ISO 639-1)" + (f"; did you mean '{meant}'?" if meant else "")
