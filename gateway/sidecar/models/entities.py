"""Presidio in the sidecar: the recognizers that are asked for and no others, without a network."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import spacy
import tldextract
from presidio_analyzer import AnalyzerEngine, EntityRecognizer, RecognizerRegistry, predefined_recognizers
from presidio_analyzer.context_aware_enhancers import LemmaContextAwareEnhancer
from presidio_analyzer.nlp_engine import NerModelConfiguration, NlpArtifacts, SpacyNlpEngine
from presidio_analyzer.predefined_recognizers import EmailRecognizer, SpacyRecognizer
from spacy.language import Language

from gateway.findings import Finding
from gateway.pii.recognizers import NAMES, RECOGNIZERS

_NER = ("tok2vec", "transformer", "ner", "entity_ruler", "span_ruler", "sentencizer")
"""Parts of a spaCy pipeline that names come from; the others would only take time."""
_MODEL_NAMES = (*sorted(NAMES), "DATE_TIME")


class Entities:
    """Finds entities by Presidio's names. ``spacy`` holds the spaCy model of each language that has one.

    Raises ``ValueError`` when one of them cannot be loaded. Thread-safe.
    """

    def __init__(self, spacy: Mapping[str, str]) -> None:
        self._nlp = _Pipelines({language: _load(model) for language, model in spacy.items()})
        self._with_names = frozenset(spacy)
        self._recognizers: dict[tuple[str, str], list[EntityRecognizer]] = {}
        self._analyzers: dict[tuple[str, tuple[str, ...]], AnalyzerEngine] = {}
        self._lock = threading.Lock()

    def find(self, text: str, language: str, entities: Sequence[str]) -> list[Finding]:
        """All that may be one of ``entities``, overlapping or not, in the text's order.

        Raises ``ValueError`` for an entity that cannot be found in that language.
        """
        asked = tuple(sorted(set(entities)))
        if not asked or not text:
            return []
        with self._lock:
            analyzer = self._analyzers.get((language, asked)) or self._analyzer(language, asked)
        results = analyzer.analyze(text, language, entities=list(asked))
        found = [
            Finding(result.entity_type, result.start, result.end, float(result.score))
            for result in results
            if result.score > 0
        ]
        return sorted(found, key=lambda it: (it.start, it.end, it.label))

    def has_names(self, language: str) -> bool:
        return language in self._with_names

    def _analyzer(self, language: str, entities: tuple[str, ...]) -> AnalyzerEngine:
        recognizers = {id(each): each for entity in entities for each in self._of(language, entity)}.values()
        self._nlp.know(language)
        analyzer = AnalyzerEngine(
            registry=RecognizerRegistry(list(recognizers), supported_languages=[language]),
            nlp_engine=self._nlp,
            supported_languages=[language],
            # In Presidio's own way a context word counts inside of other words too: "id" in "did".
            context_aware_enhancer=LemmaContextAwareEnhancer(context_matching_mode="whole_word"),
        )
        self._analyzers[language, entities] = analyzer
        return analyzer

    def _of(self, language: str, entity: str) -> list[EntityRecognizer]:
        known = self._recognizers.get((language, entity))
        if known is None:
            known = self._recognizers[language, entity] = list(self._made(language, entity))
        return known

    def _made(self, language: str, entity: str) -> Iterable[EntityRecognizer]:
        name = RECOGNIZERS.get(entity)
        if name is not None:
            kind: Any = _Email if name == "EmailRecognizer" else getattr(predefined_recognizers, name)
            yield kind(supported_language=language)
        if entity in _MODEL_NAMES and language in self._with_names:
            yield SpacyRecognizer(supported_language=language, supported_entities=[entity])
        elif name is None:
            why = (
                f"no spaCy model is named for '{language}' under 'sidecar: spacy:' in the policy"
                if entity in NAMES
                else "Presidio has no such entity"
            )
            raise ValueError(f"{entity} cannot be found: {why}")


def _load(model: str) -> Language:
    try:
        pipeline = spacy.load(model)
    except OSError as error:
        raise ValueError(
            f"the spaCy model '{model}' is not installed; run: python -m spacy download {model}"
        ) from error
    for name in list(pipeline.pipe_names):
        if name not in _NER:
            pipeline.disable_pipe(name)
    return pipeline


class _Pipelines(SpacyNlpEngine):
    """spaCy as Presidio wants it, with the pipelines given: it never downloads one."""

    def __init__(self, pipelines: dict[str, Language]) -> None:
        labels = NerModelConfiguration(labels_to_ignore=_IGNORED)
        super().__init__(models=[{"lang_code": "xx", "model_name": "blank"}], ner_model_configuration=labels)
        self.nlp: dict[str, Language] = pipelines  # type: ignore[assignment]  # None in Presidio until loaded

    def load(self) -> None:
        pass

    def is_loaded(self) -> bool:
        return True

    def know(self, language: str) -> None:
        """Where no model is named: only what splits a text into words."""
        if language not in self.nlp:
            # The languages' own rules would tell words apart better, and take seconds to load.
            self.nlp[language] = spacy.blank("xx")

    def process_text(self, text: str, language: str) -> NlpArtifacts:
        doc = self.nlp[language](text)
        spans, scores = self._get_updated_entities(list(doc.ents), self._get_scores_for_entities(doc))
        return NlpArtifacts(
            entities=spans,
            tokens=doc,
            tokens_indices=[token.idx for token in doc],
            # Context words are compared with lemmas, which only whole pipelines have.
            lemmas=[token.lemma_ or token.lower_ for token in doc],
            nlp_engine=self,
            language=language,
            scores=scores,
        )


_IGNORED = (
    "CARDINAL", "EVENT", "FAC", "LANGUAGE", "LAW", "MISC", "MONEY", "ORDINAL", "PERCENT", "PRODUCT", "QUANTITY",
    "WORK_OF_ART",
)  # fmt: skip
"""Labels of spaCy's models that Presidio has no entity for."""


class _Email(EmailRecognizer):
    """Presidio's own one fetches the list of public suffixes; tldextract carries a copy."""

    _suffixes = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)

    def validate_result(self, pattern_text: str) -> bool:
        return bool(self._suffixes(pattern_text).fqdn)
