"""The parts of texts that the injection guard's fast check learns from, and its fitting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import LogisticRegression

from gateway.guards.evaluation import SENSE_MARK, Wording, WordingWeights, form, grams, passages, plain, words
from gateway.text.chunks import chunks
from training.injection_texts import OWN, Text, weights

GRAM, SENSE, FORM_SCALE, C = 0.2, 0.5, 0.3, 3
"""What a gram counts, a sense, and a measure in standard deviations; and the inverse strength of regularisation. Senses
count more, as they carry over to sources that share no words."""
LEAST, SOURCES, MOST = 3, 2, 12_000
"""Parts that a gram must be in, and sources; grams that are kept."""
HARMLESS = 15_000
"""Harmless parts that one fit sees, drawn at random."""
ALONE = {"user": 2.5, "tool": 0.0}
READ = {"user": 400, "tool": 200}
KINDS = ("jailbreak",)
"""Of users' attacks, those that are told from others."""


class Parts:
    """Of a user's texts chunks of 1,000 characters; of tools' results passages, of which one is the attack."""

    def __init__(self, made: Sequence[Text], origin: str) -> None:
        self.origin = origin
        self.made = made
        owner: list[int] = []
        text: list[str] = []
        later: list[bool] = []
        for index, one in enumerate(made):
            for number, part in enumerate(self._cut(one)):
                owner.append(index)
                text.append(part)
                later.append(number > 0)
        self.owner = np.array(owner)
        tokens = [words(part) for part in text]
        self.grams = [grams(each) for each in tokens]
        self.form = np.array([form(part, each) for part, each in zip(text, tokens, strict=True)])
        self.attack = np.array([made[index].attack for index in owner])
        # What is said later in a long attack may be harmless by itself.
        self.weight = np.where(np.array(later) & (self.attack == 1) & (origin == "user"), 0.4, 1.0)
        public = np.array([made[index].source != OWN for index in owner])
        self.candidate = (self.attack == 1) & public if origin == "tool" else np.zeros(len(owner), bool)
        """Parts of attacks, of which only the worst of each text is learned from."""

    def _cut(self, one: Text) -> list[str]:
        text = plain(one.text)
        if self.origin == "user":
            return list(chunks(text, 1_000, 250, slack=250))
        if one.attack and one.source == OWN:
            # Those that are planted are there by themselves, too.
            return [] if one.kind == "planted" else [text]
        return [text[start:end] for start, end in passages(text)] or [text]

    def fit(self, train: np.ndarray, seed: int = 0) -> dict[str, Any]:
        """The weights learned from the texts that ``train``, a mask, selects."""
        rows = np.flatnonzero(train[self.owner])
        harmless = rows[self.attack[rows] == 0]
        if len(harmless) > HARMLESS:
            harmless = np.random.default_rng(seed).choice(harmless, HARMLESS, replace=False)
        known = rows[(self.attack[rows] == 1) & ~self.candidate[rows]]
        candidates = rows[self.candidate[rows]]
        rows = np.sort(np.concatenate([harmless, known]))
        if len(candidates):
            first = _Fitted(self, rows)
            worst: dict[int, tuple[float, int]] = {}
            for row, score in zip(candidates, first.log_odds(candidates), strict=True):
                owner = int(self.owner[row])
                worst[owner] = max(worst.get(owner, (-np.inf, 0)), (float(score), int(row)))
            rows = np.concatenate([rows, [row for _, row in worst.values()]])
        return {**_Fitted(self, rows).weights(), "kinds": self._kinds(train)}

    def _kinds(self, train: np.ndarray) -> dict[str, dict[str, float]]:
        """Words that tell of which kind an attack is; the bias is that of no word."""
        if self.origin == "tool":
            return {}
        rows = np.flatnonzero(train[self.owner] & (self.attack == 1))
        count = Counter(gram for row in rows for gram in self.grams[row] if gram.isalpha() or " " in gram)
        names = [gram for gram, _ in count.most_common(1500)]
        x = _matrix([self.grams[row] for row in rows], names, np.ones(len(names)))
        kinds = {}
        for label in KINDS:
            target = np.array([self.made[self.owner[row]].label == label for row in rows])
            fitted = LogisticRegression(C=0.3, l1_ratio=1.0, solver="liblinear").fit(x, target)
            learned = {name: round(float(w), 3) for name, w in zip(names, fitted.coef_[0], strict=True)}
            kept = {name: weight for name, weight in sorted(learned.items()) if abs(weight) > 0.05}
            kinds[label] = {"": round(float(fitted.intercept_[0]), 3), **kept}
        return kinds


class _Fitted:
    def __init__(self, parts: Parts, rows: np.ndarray) -> None:
        self._parts, self._origin = parts, parts.origin
        count: Counter[str] = Counter()
        where: dict[str, set[str]] = {}
        for row in rows:
            one = parts.made[parts.owner[row]]
            count.update(parts.grams[row])
            for gram in parts.grams[row]:
                where.setdefault(gram, set()).add(one.kind if one.source == OWN else one.source)
        self._count = count
        self._names = sorted(gram for gram, n in count.items() if n >= LEAST and len(where[gram]) >= SOURCES)
        self._low, self._high = np.percentile(parts.form[rows], [1, 99], axis=0)
        shape = np.clip(parts.form[rows], self._low, self._high)
        self._mean, self._scale = shape.mean(0), shape.std(0) + 1e-6
        counted = weights([parts.made[parts.owner[row]] for row in rows], parts.weight[rows])
        self._model = LogisticRegression(C=C, solver="liblinear", max_iter=300).fit(
            self._inputs(rows), parts.attack[rows], sample_weight=counted
        )

    def _inputs(self, rows: np.ndarray) -> csr_matrix:
        shape = np.clip(self._parts.form[rows], self._low, self._high)
        found = _matrix([self._parts.grams[row] for row in rows], self._names, _scales(self._names))
        return hstack([found, csr_matrix((shape - self._mean) / self._scale * FORM_SCALE)]).tocsr()

    def log_odds(self, rows: np.ndarray) -> np.ndarray:
        return self._model.decision_function(self._inputs(rows))

    def weights(self) -> dict[str, Any]:
        learned = self._model.coef_[0]
        measured = learned[len(self._names) :] * FORM_SCALE / self._scale
        by_gram = dict(
            zip(self._names, (learned[: len(self._names)] * _scales(self._names)).tolist(), strict=True)
        )
        kept = sorted(by_gram, key=lambda gram: -abs(by_gram[gram]) * self._count[gram] ** 0.25)[:MOST]
        return {
            "grams": {gram: round(by_gram[gram], 3) for gram in sorted(kept)},
            "form": [round(float(value), 4) for value in measured],
            "low": [round(float(value), 4) for value in self._low],
            "high": [round(float(value), 4) for value in self._high],
            "bias": round(float(self._model.intercept_[0] - measured @ self._mean), 4),
            "alone": ALONE[self._origin],
            "whole": self._origin == "user",
            "read": READ[self._origin],
            "stack": [0.0, 1.0, 0.0],
        }


def _scales(names: Sequence[str]) -> np.ndarray:
    return np.array([SENSE if name.startswith(SENSE_MARK) else GRAM for name in names])


def _matrix(found: Sequence[set[str]], names: Sequence[str], scales: np.ndarray) -> csr_matrix:
    numbers = {name: number for number, name in enumerate(names)}
    columns: list[int] = []
    ends = [0]
    for each in found:
        columns.extend(numbers[gram] for gram in each if gram in numbers)
        ends.append(len(columns))
    return csr_matrix((scales[columns], columns, ends), shape=(len(found), len(names)))


def wording(weights_: dict[str, Any]) -> Wording:
    return Wording(WordingWeights(**weights_))
