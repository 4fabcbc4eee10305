"""What those who train and measure the guards may know of them: ``training`` and ``benchmarks`` import only this.

The scanners as they are served, and of the two that are trained the features that their weights belong to, so that
what is trained is what runs. All else in this package may change without a look at either.
"""

from __future__ import annotations

from gateway.guards.guards import Guards
from gateway.guards.requests.screening import Screening
from gateway.guards.scanners.factory import build_scanners
from gateway.guards.scanners.injection import CLEAR as INJECTION_CLEAR
from gateway.guards.scanners.injection import injection
from gateway.guards.scanners.judge import ModelJudge
from gateway.guards.scanners.language import is_foreign
from gateway.guards.scanners.ngrams import SMOOTHING as NGRAM_SMOOTHING
from gateway.guards.scanners.ngrams import Ngrams
from gateway.guards.scanners.ngrams import features as ngram_features
from gateway.guards.scanners.ngrams import tokens as ngram_tokens
from gateway.guards.scanners.normalised import plain
from gateway.guards.scanners.passages import passages
from gateway.guards.scanners.pii import Pii, apart
from gateway.guards.scanners.scanner import Origin, Scanner, Unscanned, Verdict
from gateway.guards.scanners.secrets import Secrets
from gateway.guards.scanners.senses import MARK as SENSE_MARK
from gateway.guards.scanners.topics import Topics
from gateway.guards.scanners.toxicity import CATEGORIES as TOXICITY_CATEGORIES
from gateway.guards.scanners.toxicity import scorer as toxicity_scorer
from gateway.guards.scanners.toxicity import toxicity
from gateway.guards.scanners.toxicity import weights as toxicity_weights
from gateway.guards.scanners.wording import WEIGHTS as INJECTION_WEIGHTS
from gateway.guards.scanners.wording import Wording, WordingWeights, form, grams, words
from gateway.guards.texts.request_texts import RequestTexts

__all__ = [
    "INJECTION_CLEAR",
    "INJECTION_WEIGHTS",
    "NGRAM_SMOOTHING",
    "SENSE_MARK",
    "TOXICITY_CATEGORIES",
    "Guards",
    "ModelJudge",
    "Ngrams",
    "Origin",
    "Pii",
    "RequestTexts",
    "Scanner",
    "Screening",
    "Secrets",
    "Topics",
    "Unscanned",
    "Verdict",
    "Wording",
    "WordingWeights",
    "apart",
    "build_scanners",
    "form",
    "grams",
    "injection",
    "is_foreign",
    "ngram_features",
    "ngram_tokens",
    "passages",
    "plain",
    "toxicity",
    "toxicity_scorer",
    "toxicity_weights",
    "words",
]
