"""Who finds an entity: a pattern in this very process, or in the sidecar the shipped tagger or Presidio."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches

from gateway.pii.patterns import NATIONAL, PATTERNS
from gateway.pii.recognizers import NAMES, RECOGNIZERS, TAGGED

GROUPS: Mapping[str, tuple[str, ...]] = {"NATIONAL_ID": NATIONAL}
"""One name for several entities. Each is found and masked under its own."""


def expanded(entities: Sequence[str], checks: Collection[str]) -> tuple[str, ...]:
    """A guard's entities, each once, with those of a group that its checks can find in the place of its name."""
    every: dict[str, None] = {}
    for entity in entities:
        if entity in GROUPS:
            found = PATTERNS if "fast" in checks else RECOGNIZERS
            every.update(dict.fromkeys(one for one in GROUPS[entity] if one in found))
        else:
            every[entity] = None
    return tuple(every)


def asked_of_sidecar(entities: Sequence[str], checks: Collection[str]) -> tuple[str, ...]:
    """A guard's entities that the sidecar is to look for. Without any, the guard does without the sidecar."""
    if "model" not in checks:
        return ()
    return tuple(
        entity for entity in expanded(entities, checks) if not ("fast" in checks and entity in PATTERNS)
    )


def is_tagged(entity: str, language: str, spacy: Collection[str]) -> bool:
    """Whether the shipped tagger finds it, and not Presidio. ``spacy``: the languages that have a spaCy model."""
    return entity in TAGGED and not (entity in NAMES and language in spacy)


def unknown_entities(
    entities: Sequence[str],
    checks: Collection[str],
    languages: Sequence[str],
    spacy: Collection[str],
    *,
    tagger: bool = True,
) -> list[str]:
    """What is wrong with a guard's entities: one message for each that nothing here can find.

    ``spacy``: the languages of which the sidecar has a spaCy model. ``tagger``: whether it has the shipped tagger.
    """
    problems = []
    for entity in entities:
        problem = _problem(entity, checks, languages, spacy, tagger)
        if problem:
            problems.append(f"{entity}: {problem}")
    return problems


def _problem(
    entity: str, checks: Collection[str], languages: Sequence[str], spacy: Collection[str], tagger: bool
) -> str | None:
    if entity in GROUPS:
        return None
    pattern = entity in PATTERNS
    if pattern and "fast" in checks:
        return None
    if not pattern and entity not in NAMES | TAGGED and entity not in RECOGNIZERS:
        return (
            f"nobody here can find it; {_meant(entity)} names are Presidio's, see the reference of policies"
        )
    if "model" not in checks:
        return "only the model check can find it; add 'model' to 'checks'"
    if entity in NAMES | TAGGED:
        for language in languages:
            if is_tagged(entity, language, spacy):
                if not tagger:
                    return "the shipped tagger needs 'sidecar.embedder: builtin'" + (
                        f"; or name a spaCy model under 'sidecar', as in 'spacy: {{{language}: …}}'"
                        if entity in NAMES
                        else ""
                    )
            elif language not in spacy:
                return (
                    f"it takes a spaCy model to find it in {language!r}; "
                    f"name one under 'sidecar', as in 'spacy: {{{language}: …}}'"
                )
    return None


def known_entities() -> frozenset[str]:
    return frozenset((*PATTERNS, *GROUPS, *NAMES, *TAGGED, *RECOGNIZERS))


def _meant(entity: str) -> str:
    known = (*PATTERNS, *GROUPS, *TAGGED, *NAMES, *RECOGNIZERS)
    begins = (name for name in known if name.startswith(entity))
    like = next(begins, None) or next(iter(get_close_matches(entity, known, n=1)), None)
    return f"did you mean '{like}'? The" if like else "the"
