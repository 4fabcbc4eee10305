"""A light English stemmer."""

from __future__ import annotations


def stem(word: str) -> str:
    """Without plural, past and progressive endings only, so that ``hopeful`` and ``hopeless`` stay apart."""
    word = word.removesuffix("'s")
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-2] if word.endswith(("ches", "shes", "xes", "sses")) else word[:-1]
    for ending in ("ing", "ed"):
        if len(word) > len(ending) + 2 and word.endswith(ending) and not word.endswith("eed"):
            word = word[: -len(ending)]
            if word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    if len(word) > 3 and word.endswith(("e", "y", "i")):
        word = word[:-2] if word.endswith("ie") else word[:-1]
    return word
