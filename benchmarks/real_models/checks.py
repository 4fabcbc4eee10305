"""Whether an answer is right: code is run, all else is compared with what is known to be right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

SANDBOX = Path(__file__).with_name("sandbox.py")
SECONDS = 120
"""To wait for the sandbox, whose processor time is bounded: long, for a machine that has other work."""
_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_QUOTED = re.compile(r"""r?(["'`])(.*)\1""", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*")


def right(text: str, check: Mapping[str, Any]) -> bool:
    by_comparing = _COMPARED.get(check["how"])
    return _ran(text, check) if by_comparing is None else by_comparing(text, check)


def _ran(text: str, check: Mapping[str, Any]) -> bool:
    code = unfenced(text)
    if check["how"] in ("regex", "expression"):
        code = _bare(code) if check["how"] == "regex" else code.strip().strip("`")
    task = json.dumps({"code": code, "check": check})
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(SANDBOX)],
                input=task.encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=SECONDS,
                cwd=folder,
                env={},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.stdout == b"true"


def unfenced(text: str) -> str:
    """The first block of code, or all of it where there is none."""
    block = _FENCE.search(text)
    return block[1] if block else text


def _bare(text: str) -> str:
    """Without quotes around it, and blank space."""
    text = text.strip()
    quoted = _QUOTED.fullmatch(text)
    return quoted[2] if quoted else text


def _exact(text: str, check: Mapping[str, Any]) -> bool:
    lines = [line.strip() for line in unfenced(text).strip().splitlines()]
    found = re.sub(r",\s*", ", ", "\n".join(lines)).strip("`*\"' ")
    wanted = [re.sub(r",\s*", ", ", answer) for answer in check["answers"]]
    return found in wanted or found.removesuffix(".") in wanted


def _says(text: str, check: Mapping[str, Any]) -> bool:
    """The answer is among its words."""
    return any(_has(answer.casefold(), text.casefold()) for answer in check["answers"])


def _label(text: str, check: Mapping[str, Any]) -> bool:
    """Of all labels it names the right one alone. Letters count as capitals, for "a" is a word."""
    fold: Callable[[str], str] = str if all(len(one) == 1 for one in check["labels"]) else str.casefold
    named = [one for one in check["labels"] if _has(fold(one), fold(text))]
    return named == [check["answer"]]


def _number(text: str, check: Mapping[str, Any]) -> bool:
    """Its last number, in English or German writing."""
    numbers = _NUMBER.findall(text)
    return bool(numbers) and any(abs(value - check["answer"]) < 1e-6 for value in _readings(numbers[-1]))


def _readings(number: str) -> Iterator[float]:
    for plain in (number.replace(",", ""), number.replace(".", "").replace(",", ".")):
        if plain.count(".") <= 1:
            yield float(plain)


def _has(word: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


_COMPARED: Mapping[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "exact": _exact,
    "says": _says,
    "label": _label,
    "number": _number,
}
