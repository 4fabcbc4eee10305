"""Trains the injection guard: ``python -m training.injection [--data FOLDER] [--cache FILE]``.

Writes ``gateway/guards/scanners/data/injection.json`` (the fast check), ``gateway/sidecar/heads/injection.npz`` (the
model check's head) and, beside it, ``injection.json`` with the figures of cross-validation. Every choice is made by
these figures; what is shipped is then trained on all rows. The cache keeps embeddings between runs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy.sparse import csr_matrix, hstack  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402

from gateway.guards.evaluation import INJECTION_CLEAR as CLEAR  # noqa: E402
from gateway.guards.evaluation import INJECTION_WEIGHTS as WEIGHTS  # noqa: E402
from gateway.guards.evaluation import Wording, WordingWeights, form, grams, plain, words  # noqa: E402
from gateway.sidecar.models.embedder import BuiltInEmbedder  # noqa: E402
from training.injection_contrasts import contrast  # noqa: E402

log = logging.getLogger("train_injection")

HEAD = ROOT / "gateway/sidecar/heads/injection.npz"
POOLS = ("mean1", "mean3", "mean5", "mean6")
HIDDEN, EPOCHS, NETS = 48, 16, 3
GRAM, FORM_SCALE, C = 0.2, 0.3, 30
"""What a gram counts, and a measure in standard deviations; and the inverse strength of regularisation."""
LEAST, MOST = 3, 9_000
"""Texts that a gram must be in; grams that are kept."""
SHARE = 0.4
"""Of the head in what the model check says; the rest is the fast check's."""
LIMITS = {
    "NotInject": 0.036,
    "questions": 0.003,
    "prose": 0.03,
    "carriers": 0.025,
    "trigger words": 0.05,
    "foreign": 0.15,
    "duties": 0.03,
    "scraps": 0.01,
}
"""Shares of harmless texts that may be flagged, of those that the model had not seen in training."""


@dataclass
class Text:
    text: str
    attack: int
    label: str
    source: str
    kind: str
    group: str
    """Of harmless texts, that of ``LIMITS``."""
    weight: float = 1.0


def texts(data: Path, seed: int = 0) -> list[Text]:
    """All that is trained on: attacks, harmless texts of many kinds, and the contrast texts."""
    chance = random.Random(seed)
    made: list[Text] = []

    def rows(name: str) -> list[dict[str, Any]]:
        with (data / f"{name}.jsonl").open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    for row in rows("injection"):
        kind, attack = row["kind"], row["injection"]
        label = (
            "jailbreak" if kind == "jailbreak" else "indirect" if kind.startswith("indirect") else "injection"
        )
        weight = {"garak": 1.0, "PurpleLlama": 3.0}.get(row["source"], 2.0) if attack else 5.0
        if kind == "direct:different_user_input_language":
            weight = 0.2  # many are plain questions in other languages, which are no attack anywhere else
        group = "" if attack else "NotInject" if kind.startswith("NotInject") else "valid"
        made.append(Text(row["text"], attack, label if attack else "", row["source"], kind, group, weight))
    routing = [row["text"] for row in rows("routing")]
    pairs = [text for row in rows("question_pairs") for text in (row["a"], row["b"])]
    ordinary = chance.sample(routing, 2500) + chance.sample(pairs, 5000)
    made.extend(Text(text, 0, "", "questions", "questions", "questions") for text in ordinary)
    made.extend(
        Text(row["text"], 0, "", "questions", "xstest", "questions")
        for row in rows("xstest")
        if row["label"] == "safe"
    )
    made.extend(Text(row["text"], 0, "", "prose", "moderation", "prose", 0.5) for row in rows("moderation"))
    for one in contrast():
        group = "" if one.label else "carriers" if "carrier" in one.family else one.family
        # Duties and scraps are many and alike.
        weight = {"foreign": 2.0, "duties": 0.2, "scraps": 0.2}.get(one.family, 0.5)
        made.append(Text(one.text, int(bool(one.label)), one.label, "contrast", one.family, group, weight))
    return list({one.text: one for one in reversed(made)}.values())[::-1]


class Windows:
    """The windows of all texts, as the sidecar cuts them, with poolings and words."""

    def __init__(self, made: Sequence[Text], cache: Path | None) -> None:
        embedder = BuiltInEmbedder()
        self.owner: list[int] = []
        self.text: list[str] = []
        first = []
        for index, one in enumerate(made):
            text = plain(one.text)
            for number, (start, end) in enumerate(embedder.windows(text, 1000)):
                self.owner.append(index)
                self.text.append(text[start:end])
                first.append(number == 0)
        self.owners = np.array(self.owner)
        self.attack = np.array([made[index].attack for index in self.owner])
        # What is said later in a long attack may be harmless by itself.
        faint = [
            1.0 if number or not attack else 0.4 for number, attack in zip(first, self.attack, strict=True)
        ]
        self.weight = np.array([made[index].weight for index in self.owner]) * faint
        self.poolings = _embedded(embedder, self.text, cache)
        tokens = [words(text) for text in self.text]
        self.grams = [grams(each) for each in tokens]
        self.form = np.array([form(text, each) for text, each in zip(self.text, tokens, strict=True)])


def _embedded(embedder: BuiltInEmbedder, made: Sequence[str], cache: Path | None) -> np.ndarray:
    rows = [embedder.pools.index(name) for name in POOLS]
    keys = [sha1(text.encode()).hexdigest() for text in made]
    known: dict[str, np.ndarray] = {}
    if cache and cache.exists():
        with np.load(cache) as kept:
            known = dict(zip(kept["keys"].tolist(), kept["vectors"], strict=True))
    todo = sorted(
        {key: text for key, text in zip(keys, made, strict=True) if key not in known}.items(),
        key=lambda x: len(x[1]),
    )
    for start in range(0, len(todo), 16):
        part = todo[start : start + 16]
        for (key, _), encoding in zip(part, embedder.encode([text for _, text in part]), strict=True):
            known[key] = encoding[rows].reshape(-1).astype(np.float16)
    if cache and todo:
        np.savez(cache, keys=np.array(list(known)), vectors=np.stack(list(known.values())))
    return np.stack([known[key] for key in keys]).astype(np.float32)


def train_wording(all_: Windows, train: np.ndarray, made: Sequence[Text]) -> dict[str, Any]:
    """The fast check's weights, from the windows ``train``."""
    count = Counter(gram for index in train for gram in all_.grams[index])
    known = {gram: number for number, gram in enumerate(sorted(g for g, n in count.items() if n >= LEAST))}
    cells = [
        (row, known[gram]) for row, index in enumerate(train) for gram in all_.grams[index] if gram in known
    ]
    row, column = np.array(cells).T
    counts = csr_matrix((np.full(len(cells), GRAM), (row, column)), shape=(len(train), len(known)))
    low, high = np.percentile(all_.form[train], [1, 99], axis=0)
    shape = np.clip(all_.form[train], low, high)
    mean, scale = shape.mean(0), shape.std(0) + 1e-6
    x = hstack([counts, csr_matrix((shape - mean) / scale * FORM_SCALE)]).tocsr()
    fitted = LogisticRegression(C=C, solver="liblinear", max_iter=300).fit(
        x, all_.attack[train], sample_weight=all_.weight[train]
    )
    weights = fitted.coef_[0]
    measured = weights[len(known) :] * FORM_SCALE / scale
    names = list(known)
    by_gram = {names[i]: float(weights[i] * GRAM) for i in range(len(names))}
    kept = sorted(by_gram, key=lambda gram: -abs(by_gram[gram]) * count[gram] ** 0.25)[:MOST]
    return {
        "grams": {gram: round(by_gram[gram], 3) for gram in sorted(kept)},
        "form": [round(float(value), 4) for value in measured],
        "low": [round(float(value), 4) for value in low],
        "high": [round(float(value), 4) for value in high],
        "bias": float(fitted.intercept_[0] - measured @ mean),
        "kinds": _kinds(all_, train, made),
        "stack": [SHARE, 1 - SHARE, 0.0],
    }


def _kinds(all_: Windows, train: np.ndarray, made: Sequence[Text]) -> dict[str, dict[str, float]]:
    """Words that tell of which kind an attack is; the bias is that of no word."""
    attacks = [index for index in train if all_.attack[index]]
    count = Counter(gram for index in attacks for gram in all_.grams[index] if gram.isalpha() or " " in gram)
    known = {gram: number for number, (gram, _) in enumerate(count.most_common(1500))}
    cells = [(row, known[g]) for row, index in enumerate(attacks) for g in all_.grams[index] if g in known]
    row, column = np.array(cells).T
    x = csr_matrix((np.ones(len(cells)), (row, column)), shape=(len(attacks), len(known)))
    kinds = {}
    for label in ("indirect", "jailbreak"):
        target = np.array([made[all_.owner[index]].label == label for index in attacks])
        fitted = LogisticRegression(C=0.3, l1_ratio=1.0, solver="liblinear").fit(x, target)
        learned = {
            g: round(float(fitted.coef_[0][n]), 3) for g, n in known.items() if abs(fitted.coef_[0][n]) > 0.05
        }
        kinds[label] = {"": round(float(fitted.intercept_[0]), 3), **dict(sorted(learned.items()))}
    return kinds


def train_head(all_: Windows, train: np.ndarray) -> dict[str, np.ndarray]:
    """The head's arrays: nets of one hidden layer, side by side, whose logits are averaged."""
    x = all_.poolings[train]
    mean, scale = x.mean(0), x.std(0) + 1e-3
    inputs = torch.tensor((x - mean) / scale)
    target = torch.tensor(all_.attack[train], dtype=torch.float32)
    weight = torch.tensor(all_.weight[train], dtype=torch.float32)
    nets = []
    for seed in range(NETS):
        torch.manual_seed(seed)
        order = np.random.default_rng(seed)
        net = torch.nn.Sequential(
            torch.nn.Dropout(0.3), torch.nn.Linear(x.shape[1], HIDDEN), torch.nn.ReLU(), torch.nn.Dropout(0.3),
            torch.nn.Linear(HIDDEN, 1),
        )  # fmt: skip
        optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
        steps = EPOCHS * -(-len(train) // 256)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
        for _ in range(EPOCHS):
            for batch in torch.tensor(order.permutation(len(train))).split(256):
                optimizer.zero_grad()
                loss = torch.nn.functional.binary_cross_entropy_with_logits(
                    net(inputs[batch])[:, 0], target[batch], weight[batch]
                )
                loss.backward()
                optimizer.step()
                schedule.step()
        nets.append(net)
    first, last = [net[1] for net in nets], [net[4] for net in nets]
    return {
        "pools": np.array(POOLS),
        "labels": np.array(["injection"]),
        "mean": mean.astype(np.float16),
        "scale": scale.astype(np.float16),
        "w0": torch.cat([layer.weight for layer in first]).detach().numpy().T.astype(np.float16),
        "b0": torch.cat([layer.bias for layer in first]).detach().numpy().astype(np.float16),
        "w1": (torch.cat([layer.weight for layer in last], 1) / NETS).detach().numpy().T.astype(np.float16),
        "b1": (sum(layer.bias for layer in last) / NETS).detach().numpy().astype(np.float16),
    }


def head_log_odds(head: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    f = {name: array.astype(np.float32) for name, array in head.items() if array.dtype == np.float16}
    hidden = np.maximum((x - f["mean"]) / f["scale"] @ f["w0"] + f["b0"], 0)
    return (hidden @ f["w1"] + f["b1"])[:, 0]


@dataclass
class Unseen:
    """Log-odds of texts by what had not seen them, before they are shifted."""

    fast: np.ndarray
    """Of a text."""
    stacked: np.ndarray
    """Of a text's worst window."""


def unseen(made: Sequence[Text], all_: Windows, folds: np.ndarray) -> Unseen:
    """``folds`` has a number for each text; -1 is trained on always. The second look that the model check has at single
    sentences of long texts is left out."""
    fast, stacked = np.full(len(made), -np.inf), np.full(len(made), -np.inf)
    for fold in sorted(set(folds.tolist()) - {-1}):
        train = np.flatnonzero(folds[all_.owners] != fold)
        test = np.flatnonzero(folds[all_.owners] == fold)
        wording = _wording(train_wording(all_, train, made))
        head = head_log_odds(train_head(all_, train), all_.poolings[test])
        for index in sorted(set(all_.owners[test].tolist())):
            fast[index] = wording.log_odds(made[index].text)
        for window, value in zip(test, head, strict=True):
            owner = all_.owner[window]
            both = SHARE * value + (1 - SHARE) * wording.log_odds(all_.text[window])
            stacked[owner] = max(stacked[owner], both)
        log.info("%s", f"fold {fold}: {len(test)} windows")
    return Unseen(fast, stacked)


def _wording(weights: dict[str, Any]) -> Wording:
    return Wording(WordingWeights(**weights))


def shift(made: Sequence[Text], log_odds: np.ndarray) -> float:
    """The most that may be added to ``log_odds`` within ``LIMITS``, and at most 1.2."""
    best = 1.2
    for group, limit in LIMITS.items():
        values = np.sort(log_odds[[one.group == group for one in made]])[::-1]
        best = min(best, -float(values[int(limit * len(values))]) - 1e-3)
    return round(best, 3)


def served(fast: np.ndarray, stacked: np.ndarray) -> np.ndarray:
    """Log-odds that decide: the fast check's where it is sure."""
    low, high = (np.log(bound / (1 - bound)) for bound in CLEAR)
    return np.where((fast <= low) | (fast >= high), fast, stacked)


def figures(made: Sequence[Text], log_odds: np.ndarray) -> dict[str, Any]:
    """Shares flagged: of attacks by source and kind, of harmless texts by group."""
    flagged = log_odds >= 0

    def share(of: list[bool]) -> list[float]:
        return [round(float(flagged[of].mean()), 4), int(np.sum(of))]

    public = [bool(one.attack) and one.source != "contrast" for one in made]
    kinds = sorted({(one.source, one.kind) for one in made if one.attack})
    sources = sorted({source for source, _ in kinds})
    groups = sorted({one.group for one in made} - {""})

    def recall(source: str, kind: str = "") -> list[float]:
        return share(
            [bool(one.attack) and one.source == source and one.kind in (kind or one.kind,) for one in made]
        )

    return {
        "recall": share(public),
        "recall by source": {source: recall(source) for source in sources},
        "recall by kind": {f"{source} {kind}": recall(source, kind) for source, kind in kinds},
        "flagged": {group: share([one.group == group for one in made]) for group in groups},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    made = texts(options.data)
    all_ = Windows(made, options.cache)
    log.info("%s", f"{len(made)} texts, {len(all_.text)} windows")
    chance = np.random.default_rng(0)
    random_ = unseen(made, all_, chance.integers(0, 5, len(made)))
    fast_shift, stack_shift = shift(made, random_.fast), shift(made, random_.stacked)
    fast, stacked = random_.fast + fast_shift, random_.stacked + stack_shift
    decided = served(fast, stacked)
    low, high = (np.log(bound / (1 - bound)) for bound in CLEAR)
    clear = (fast <= low) | (fast >= high)
    questions = np.array([one.group == "questions" for one in made])
    report = {
        "random folds": figures(made, decided),
        "random folds, fast check alone": figures(made, fast),
        "random folds, model check alone": figures(made, stacked),
        "decided by the fast check": {
            "questions": round(float(clear[questions].mean()), 4),
            "attacks": round(float(clear[[bool(one.attack) for one in made]].mean()), 4),
        },
        "shift": {"fast": fast_shift, "stacked": stack_shift},
    }
    log.info("%s", json.dumps(report, indent=1))
    # The stack takes the fast check's log-odds as they are served, shift and all.
    weights = train_wording(all_, np.arange(len(all_.text)), made)
    weights["bias"] = round(weights["bias"] + fast_shift, 4)
    weights["stack"] = [SHARE, 1 - SHARE, round(stack_shift - (1 - SHARE) * fast_shift, 4)]
    WEIGHTS.parent.mkdir(exist_ok=True)
    WEIGHTS.write_text(json.dumps(weights, ensure_ascii=False, indent=0, sort_keys=True) + "\n", "utf-8")
    np.savez_compressed(HEAD, **train_head(all_, np.arange(len(all_.text))))
    HEAD.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    for name, key in (("kinds left out", _kind), ("sources left out", _source)):
        groups = sorted({key(one) for one in made if one.attack and one.source != "contrast"})
        number = {group: place if key is _source else place % 6 for place, group in enumerate(groups)}
        folds = np.array(
            [number.get(key(one), -1) if one.attack and one.source != "contrast" else -1 for one in made]
        )
        left = unseen(made, all_, folds)
        decided = served(left.fast + fast_shift, left.stacked + stack_shift)
        found = figures(made, decided)
        found["recall by source"].pop("contrast")
        found["recall by kind"] = {
            k: v for k, v in found["recall by kind"].items() if not k.startswith("contrast")
        }
        report[name] = {part: value for part, value in found.items() if part != "flagged"}
        log.info("%s: %s", name, json.dumps(report[name], indent=1))
        HEAD.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")


def _kind(one: Text) -> str:
    return f"{one.source} {one.kind}"


def _source(one: Text) -> str:
    return one.source


if __name__ == "__main__":
    main()
