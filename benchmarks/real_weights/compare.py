"""Predictions beside transformers': kept text by text, so that a run goes on where the one before it ended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.real_weights.texts import Text

KL_AT = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""After how many tokens whole distributions are compared, and after all: of each token they would be 200 GB."""
RANGES = (8, 64)
"""Where ranges of positions end, which KL is told for."""

Predict = Callable[[Sequence[Text]], Iterator[Tensor]]


@dataclass(frozen=True, slots=True)
class Row:
    """One text by one of the two, beside the reference."""

    text: int
    stratum: str
    tokens: int
    loss: float
    """Nats, of all tokens together."""
    reference_loss: float
    same: int
    """Tokens where both find the same most likely."""
    off: float
    """The largest difference of a token's log-probability."""
    kl: dict[str, float]
    """Nats, by the number of tokens seen."""


class Reference:
    """What transformers predicts, in a file for each text."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fill(self, texts: Sequence[Text], predict: Predict) -> None:
        """Asks for the texts that are not there yet."""
        self._folder.mkdir(parents=True, exist_ok=True)
        missing = [text for text in texts if not self._path(text).exists()]
        if not missing:
            return
        for text, logits in zip(missing, predict(missing), strict=True):
            found = logits.log_softmax(-1)
            seen = _seen(len(text.tokens))
            part = self._path(text).with_suffix(".part")
            with part.open("wb") as file:
                np.savez(
                    file,
                    tokens=np.array(text.tokens),
                    own=_of(found, text),
                    best=found.argmax(-1).numpy(),
                    whole=found[[one - 1 for one in seen]].numpy(),
                )
            os.replace(part, self._path(text))

    def beside(self, text: Text, logits: Tensor) -> Row:
        """Raises ``SystemExit`` if the file is of other tokens."""
        kept = np.load(self._path(text))
        if kept["tokens"].tolist() != text.tokens:
            raise SystemExit(f"{self._path(text)} is of other tokens: give another --work, or empty it.")
        found = logits.log_softmax(-1)
        own, seen = _of(found, text), _seen(len(text.tokens))
        # Rounded to float32 they do not sum to one, by which a divergence is off by more than a good model's.
        whole = torch.from_numpy(kept["whole"]).double().log_softmax(-1)
        ours = found[[one - 1 for one in seen]].double().log_softmax(-1)
        divergence = (whole.exp() * (whole - ours)).sum(-1)
        return Row(
            text.number,
            text.stratum,
            len(own),
            -float(own.sum()),
            -float(kept["own"].sum()),
            int((found.argmax(-1).numpy() == kept["best"]).sum()),
            float(np.abs(own - kept["own"]).max()),
            {str(one): float(value) for one, value in zip(seen, divergence, strict=True)},
        )

    def _path(self, text: Text) -> Path:
        return self._folder / f"{text.number:04}.npz"


def rows(path: Path, reference: Reference, texts: Sequence[Text], predict: Predict) -> list[Row]:
    """Of all texts; those that ``path`` has are not predicted again, and it gets the others."""
    known = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            row = Row(**json.loads(line))
            known[row.text] = row
    missing = [text for text in texts if text.number not in known]
    if missing:
        for text, logits in zip(missing, predict(missing), strict=True):
            known[text.number] = reference.beside(text, logits)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(known[text.number])) + "\n")
    return [known[text.number] for text in texts]


HEAD = """\
| what | texts | tokens | KL, mean | largest | after 1 to 8 | to 64 | beyond | same token | perplexity | reference's |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""


def table(name: str, found: Sequence[Row]) -> Iterator[str]:
    """A line for all, and one for each stratum."""
    strata: Mapping[str, list[Row]] = {"all": list(found)}
    for row in found:
        strata.setdefault(row.stratum, []).append(row)  # type: ignore[attr-defined]
    for stratum, each in strata.items():
        tokens = sum(row.tokens for row in each)
        kl = [(int(seen), value) for row in each for seen, value in row.kl.items()]
        start, cells = 0, []
        for end in (*RANGES, 10**9):
            part = [value for seen, value in kl if start < seen <= end]
            cells.append(f"{np.mean(part):.1e}" if part else "–")
            start = end
        yield (
            f"| {name} | {stratum} | {tokens:,} | {mean_kl(each):.1e} | {max(value for _, value in kl):.1e} | "
            + " | ".join(cells)
            + f" | {sum(row.same for row in each) / tokens:.2%}"
            f" | {exp(sum(row.loss for row in each) / tokens):.3f}"
            f" | {exp(sum(row.reference_loss for row in each) / tokens):.3f} |"
        )


def mean_kl(found: Sequence[Row]) -> float:
    return float(np.mean([value for row in found for value in row.kl.values()]))


def _seen(tokens: int) -> list[int]:
    """After how many of so many tokens whole distributions are compared."""
    return [*(one for one in KL_AT if one < tokens - 1), tokens - 1]


def _of(logprobs: Tensor, text: Text) -> np.ndarray:
    """Of the text's own tokens."""
    return logprobs.gather(1, torch.tensor(text.tokens[1:])[:, None])[:, 0].double().numpy()
