"""Reasons for which two questions must not share an answer, however alike they look.

Each rule reads both questions and says whether they differ in one respect. They are strict on purpose: a refusal
costs a call upstream, and a wrong answer costs trust.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise

from gateway.caching import lexicon as words
from gateway.caching.question import MAX_CHARACTERS, Question, canonical, read, stem

Rule = Callable[[Question, Question], bool]
"""True when the questions differ."""


def refusal(a: str, b: str) -> str | None:
    """The first rule that keeps ``a`` and ``b`` apart (``number``, ``negation`` …), or None when none does."""
    if a == b:
        return None
    if max(len(a), len(b)) > MAX_CHARACTERS:
        return "length"
    return next(refusals(read(a), read(b)), None)


def refusals(a: Question, b: Question) -> Iterator[str]:
    """All rules that keep the two apart."""
    return (name for name, rule in RULES.items() if rule(a, b))


def number(a: Question, b: Question) -> bool:
    if a.numbers == b.numbers and a.codes == b.codes:
        return False
    these, those = Counter(a.numbers), Counter(b.numbers)
    only_a, only_b = set(these - those), set(those - these)
    if only_a and only_b:
        return True
    # Saying the same number again is no difference, and nor is a "first" that goes without saying.
    return (
        bool((only_a | only_b) - set(words.SOFT_NUMBERS) - (set(a.numbers) & set(b.numbers)))
        or a.codes != b.codes
    )


def unit(a: Question, b: Question) -> bool:
    only_a, only_b = a.units - b.units, b.units - a.units
    if only_a and only_b:
        return True
    return bool((only_a | only_b) - words.CURRENCIES)


def date(a: Question, b: Question) -> bool:
    return a.dates != b.dates


def name(a: Question, b: Question) -> bool:
    """A name of one that the other does not have in any writing."""
    return bool(unnamed(a, b) or unnamed(b, a))


def unnamed(a: Question, b: Question) -> frozenset[str]:
    """Names in ``a`` that ``b`` does not have."""
    there = {canonical(token) for token in b.tokens}
    together = "".join(b.tokens)
    missing = frozenset(name for name in a.names if name not in there and name not in together)
    return missing - _fuller(a, missing, a.names - missing) if missing else missing


def _fuller(a: Question, missing: frozenset[str], shared: frozenset[str]) -> frozenset[str]:
    """Names that only make a shared one longer: a first name before a family name."""
    roots = [canonical(token) for token in a.tokens]
    return frozenset(
        one
        for one, following in pairwise(roots)
        if one in missing and following in shared and one not in _KNOWN
    )


def negation(a: Question, b: Question) -> bool:
    if a.negations != b.negations:
        return True
    return _prefixed(a.stems - b.stems, b.stems) or _prefixed(b.stems - a.stems, a.stems)


def _prefixed(only: frozenset[str], others: frozenset[str]) -> bool:
    """``unsafe`` and ``safe``, ``hopeless`` and ``hopeful``."""
    for word in only:
        for prefix in words.NEGATIVE_PREFIXES:
            if (
                len(word) - len(prefix) >= 4
                and word.startswith(prefix)
                and word.removeprefix(prefix).lstrip("-") in others
            ):
                return True
        if word.endswith("less") and (word[:-4] in others or word[:-4] + "ful" in others):
            return True
    return False


_KNOWN = frozenset(canonical(word) for word in words.TOPICS | words.LANGUAGES)
_OPPOSITES: dict[str, frozenset[str]] = {}
for _left, _right in words.OPPOSITES:
    for _these, _those in ((_left, _right), (_right, _left)):
        for _word in _these:
            _root = stem(_word)
            _OPPOSITES[_root] = _OPPOSITES.get(_root, frozenset()) | {stem(other) for other in _those}


def opposite(a: Question, b: Question) -> bool:
    only_a, only_b = a.stems - b.stems, b.stems - a.stems
    return any(not only_b.isdisjoint(_OPPOSITES.get(word, ())) for word in only_a)


def order(a: Question, b: Question) -> bool:
    """The same things, with their parts swapped: ``from A to B``, ``does A eat B``."""
    shared = set(a.content) & set(b.content)
    if len(shared) < 2 or a.tokens == b.tokens:
        return False
    first_a, first_b = _places(a, shared), _places(b, shared)
    whole = len(shared) == len(set(a.content)) == len(set(b.content))
    joint = not words.SYMMETRIC.isdisjoint(a.tokens) and not words.SYMMETRIC.isdisjoint(b.tokens)
    for x, y in combinations(sorted(shared), 2):
        if (first_a[x] < first_a[y]) == (first_b[x] < first_b[y]):
            continue
        between_a, between_b = _between(a, first_a[x], first_a[y]), _between(b, first_b[x], first_b[y])
        if between_a & between_b & words.DIRECTED:
            return True
        if (
            whole
            and not joint
            and (between_a and between_b)
            and x in a.names | b.names
            and y in a.names | b.names
        ):
            return True
    return False


def _places(question: Question, shared: set[str]) -> dict[str, int]:
    places: dict[str, int] = {}
    for position, token in enumerate(question.tokens):
        if (root := canonical(token)) in shared:
            places.setdefault(root, position)
    return places


def _between(question: Question, x: int, y: int) -> frozenset[str]:
    return frozenset(question.tokens[min(x, y) + 1 : max(x, y)])


def form(a: Question, b: Question) -> bool:
    return a.forms != b.forms


def length(a: Question, b: Question) -> bool:
    return words.same_group(a.tokens, words.LENGTHS) != words.same_group(b.tokens, words.LENGTHS)


def audience(a: Question, b: Question) -> bool:
    return a.audiences != b.audiences


def question(a: Question, b: Question) -> bool:
    """``why``, ``when``, ``where``, ``who`` and the quantities ask for different things; ``how`` and ``what`` may not."""
    if a.kind == b.kind:
        return False
    kinds = {a.kind, b.kind}
    if "why" in kinds or "when" in kinds:
        return True
    measured = [kind for kind in kinds if kind.startswith("how ")]
    if measured:
        noun = words.MEASURED.get(measured[0].removeprefix("how "), frozenset())
        return len(measured) == 2 or (noun.isdisjoint(a.tokens) and noun.isdisjoint(b.tokens))
    return kinds == {"where", "who"} or kinds == {"how", "who"} or kinds == {"how", "where"}


def quantifier(a: Question, b: Question) -> bool:
    return words.same_group(a.tokens, words.STRICT_QUANTIFIERS) != words.same_group(
        b.tokens, words.STRICT_QUANTIFIERS
    )


RULES: dict[str, Rule] = {
    "number": number,
    "unit": unit,
    "date": date,
    "name": name,
    "negation": negation,
    "opposite": opposite,
    "order": order,
    "form": form,
    "length": length,
    "audience": audience,
    "question": question,
    "quantifier": quantifier,
}
