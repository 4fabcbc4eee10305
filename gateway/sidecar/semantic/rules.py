"""Reasons for which two questions must not share an answer, however alike they look.

Each rule reads both questions and says whether they differ in one respect. They are strict on purpose: a refusal
costs a call upstream, and a wrong answer costs trust.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import combinations, pairwise

from gateway.sidecar.semantic.lexicon import Words, groups_of, lexicon
from gateway.sidecar.semantic.question import MAX_CHARACTERS, Question, canonical, read

Rule = Callable[[Question, Question], bool]
"""True when the questions differ."""

_IMPLIED = 1.0
"""``first`` may be there or not."""


@cache
def _topics_and_languages() -> Words:
    words = lexicon()
    return frozenset(map(canonical, words.topics | words.languages))


@cache
def _generic() -> Words:
    return frozenset(map(canonical, lexicon().generic))


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
    beyond = (only_a | only_b) - {_IMPLIED} - (set(a.numbers) & set(b.numbers))
    return bool(beyond) or a.codes != b.codes


def unit(a: Question, b: Question) -> bool:
    """A currency that only one names may go without saying."""
    only_a, only_b = a.units - b.units, b.units - a.units
    return bool((only_a and only_b) or (only_a | only_b) - lexicon().currencies)


def date(a: Question, b: Question) -> bool:
    return a.dates != b.dates


def name(a: Question, b: Question) -> bool:
    """A name of one that the other does not have in any writing; in a rewording, only where each has its own."""
    only_a, only_b = unnamed(a, b), unnamed(b, a)
    if only_a and only_b:
        return True
    return not reworded(a, b) and bool(only_a - _fuller(a, only_a) or only_b - _fuller(b, only_b))


def unnamed(a: Question, b: Question) -> frozenset[str]:
    """Names in ``a`` that ``b`` does not have."""
    there = {canonical(token) for token in b.tokens}
    together = "".join(b.tokens)
    return frozenset(name for name in a.names if name not in there and name not in together)


def _fuller(a: Question, missing: frozenset[str]) -> frozenset[str]:
    """Names that only make a shared one longer: a first name before a family name."""
    if not missing:
        return missing
    shared = a.names - missing
    roots = [canonical(token) for token in a.tokens]
    return frozenset(
        one
        for one, following in pairwise(roots)
        if one in missing and following in shared and one not in _topics_and_languages()
    )


def negation(a: Question, b: Question) -> bool:
    if a.negations != b.negations:
        return True
    return _prefixed(a.stems - b.stems, b.stems) or _prefixed(b.stems - a.stems, a.stems)


def _prefixed(only: frozenset[str], others: frozenset[str]) -> bool:
    """``unsafe`` and ``safe``, ``hopeless`` and ``hopeful``."""
    for word in only:
        for prefix in lexicon().negative_prefixes:
            bare = word.removeprefix(prefix).lstrip("-")
            if len(bare) >= 3 and bare != word and bare in others:
                return True
        if word.endswith("less") and (word[:-4] in others or word[:-4] + "ful" in others):
            return True
        if word.startswith("hyper") and "hypo" + word[5:] in others:
            return True
    return False


def opposite(a: Question, b: Question) -> bool:
    only_a, only_b = a.stems - b.stems, b.stems - a.stems
    return any(not only_b.isdisjoint(lexicon().opposites_by_stem.get(word, ())) for word in only_a)


def order(a: Question, b: Question) -> bool:
    """The same things, with their parts swapped: ``from A to B``, ``does A eat B``."""
    words = lexicon()
    permuted = Counter(a.tokens) == Counter(b.tokens)
    if permuted and _symbols(a) != _symbols(b) and words.joining.isdisjoint(a.tokens):
        return True
    shared = set(a.content) & set(b.content)
    if len(shared) < 2 or a.tokens == b.tokens or not words.mutual.isdisjoint(a.tokens):
        return False
    first_a, first_b = _positions(a, shared), _positions(b, shared)
    named = a.names | b.names
    for x, y in combinations(sorted(shared), 2):
        if (first_a[x] < first_a[y]) == (first_b[x] < first_b[y]):
            continue
        between_a, between_b = _between(a, first_a[x], first_a[y]), _between(b, first_b[x], first_b[y])
        if between_a <= words.symmetric and between_b <= words.symmetric:
            continue
        if permuted or between_a & between_b & words.directed:
            return True
        if between_a and between_b and x in named and y in named:
            return True
    return False


def _symbols(question: Question) -> list[str]:
    """Numbers and, where there are several, letters in order."""
    letters = [token for token in question.tokens if len(token) == 1]
    return [token for token in question.tokens if token[0].isdigit()] + (letters if len(letters) > 1 else [])


def _positions(question: Question, shared: set[str]) -> dict[str, int]:
    positions: dict[str, int] = {}
    for position, token in enumerate(question.tokens):
        if (root := canonical(token)) in shared:
            positions.setdefault(root, position)
    return positions


def _between(question: Question, x: int, y: int) -> frozenset[str]:
    return frozenset(question.tokens[min(x, y) + 1 : max(x, y)])


def sign(a: Question, b: Question) -> bool:
    """``a & b`` and ``a && b``, ``-5`` and ``5``, one emoji and another."""
    return a.signs != b.signs


def form(a: Question, b: Question) -> bool:
    return a.forms != b.forms


def length(a: Question, b: Question) -> bool:
    words = lexicon()
    return groups_of(a.tokens, words.lengths) != groups_of(b.tokens, words.lengths)


def audience(a: Question, b: Question) -> bool:
    return a.audiences != b.audiences and not reworded(a, b)


def question(a: Question, b: Question) -> bool:
    """``why``, ``when``, ``who`` and the quantities ask for different things; ``how`` and ``what`` may not."""
    words = lexicon()
    if a.kind == b.kind:
        return False
    auxiliary = words.auxiliaries.get(a.kind), words.auxiliaries.get(b.kind)
    if None not in auxiliary:
        return auxiliary[0] != auxiliary[1] and not reworded(a, b)
    kinds = {a.kind, b.kind}
    if "why" in kinds or "when" in kinds:
        return True
    measured = [kind for kind in kinds if kind.startswith("how ")]
    if measured:
        noun = words.measured.get(measured[0].removeprefix("how "), frozenset())
        return len(measured) == 2 or (noun.isdisjoint(a.tokens) and noun.isdisjoint(b.tokens))
    return kinds in ({"where", "who"}, {"how", "who"}, {"how", "where"})


def quantifier(a: Question, b: Question) -> bool:
    strict = lexicon().strict_quantifiers
    differ = groups_of(a.tokens, strict) != groups_of(b.tokens, strict)
    return differ and not reworded(a, b)


def substitution(a: Question, b: Question) -> bool:
    """The same frame around another thing: one word for one, or one stretch for one."""
    alone_a, alone_b = unmatched(a, b), unmatched(b, a)
    if not alone_a or not alone_b or reworded(a, b):
        return False
    if len(alone_a) == len(alone_b) == 1:
        return True
    shorter, longer = sorted((len(a.content), len(b.content)))
    head = _common(a.content, b.content)
    tail = min(shorter - head, _common(a.content[::-1], b.content[::-1]))
    return head + tail > 0 and longer - head - tail <= 2


def reworded(a: Question, b: Question) -> bool:
    """The wording differs so much that single words tell little; the learned score decides."""
    one, other = sorted((a.tokens, b.tokens))
    return SequenceMatcher(None, one, other, autojunk=False).ratio() < 0.6


def unmatched(a: Question, b: Question) -> list[str]:
    """Content words of ``a`` without a counterpart in ``b``, generic ones left out."""
    there = set(b.content)
    generic = _generic()
    return [
        word
        for word in dict.fromkeys(a.content)
        if word not in there and word not in generic and not any(related(word, other) for other in there)
    ]


def related(one: str, other: str) -> bool:
    """Forms of one word (``educate``, ``educational``), or one of them with a letter too many or two swapped."""
    short, long = sorted((one, other), key=len)
    same = _common(short, long)
    if same >= 4 and {short[same:], long[same:]} - {""} <= lexicon().suffixes:
        return True
    if len(short) < 6 or len(long) - len(short) > 1 or short[:2] != long[:2]:
        return False
    if len(long) > len(short):
        return long[:same] + long[same + 1 :] == short
    swapped = long[:same] + long[same + 1 : same + 2] + long[same : same + 1] + long[same + 2 :]
    return swapped == short


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How far two go together."""
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


RULES: dict[str, Rule] = {
    "number": number,
    "unit": unit,
    "date": date,
    "name": name,
    "negation": negation,
    "opposite": opposite,
    "order": order,
    "sign": sign,
    "form": form,
    "length": length,
    "audience": audience,
    "question": question,
    "quantifier": quantifier,
    "substitution": substitution,
}
