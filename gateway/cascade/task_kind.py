"""How demanding a request is by the kind of task it names and by its length, where no trained score applies.

Rules of our own, without training: the kind is told by the words that people ask with. How far the order agrees with
gradings that were made without knowing the rules stands in ``docs/cascade.md``.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import NamedTuple

_END = 300
"""Characters at either end of a text in which its task is looked for; what lies between is mostly material."""
LENGTH = 0.02
"""Added for each doubling of a text beyond 500 characters."""
CONSTRAINT = 0.02
"""Added for each condition that the answer must meet, up to six."""
EXPERT = 0.05
"""Added for each different word of an expert's, up to four."""
UNKNOWN = 0.4
"""A text whose task no rule knows;"""
REMARK = 0.2
"""and a short one: a remark, or an order to an assistant."""


class Kind(NamedTuple):
    name: str
    level: float
    """0 to 1: 0.1 is what any model does, 0.5 ordinary work, 0.9 what experts are asked."""
    phrases: re.Pattern[str] | None
    """Found anywhere in the lower-case text."""
    words: re.Pattern[str] | None = None
    """Matches one whole lower-case word."""


def _kind(name: str, level: float, phrases: str = "", words: str = "") -> Kind:
    return Kind(
        name,
        level,
        re.compile(phrases, re.MULTILINE) if phrases else None,
        re.compile(words) if words else None,
    )


TRIVIAL = (
    _kind(
        "greeting",
        0.03,
        r"^\W*(?:hi|hey|hello|yo|good (?:morning|evening|night|afternoon)|thanks?|thank you|thx|"
        r"ok(?:ay)?|bye|how are you|"
        r"hola|gracias|buenos d[ií]as|buenas \w+|hallo|guten (?:tag|morgen|abend)|danke|servus|moin|"
        r"bonjour|salut|merci|"
        r"bonsoir|你好|您好|谢谢|早上好)\b[^?\n]{0,40}\Z",
    ),
    _kind(
        "sum",
        0.05,
        r"^\D{0,25}\d[\d,.]*\s*(?:[-+*/x×÷]|plus|minus|times|mal|por|fois|加|乘|减)\s*-?\d[\d,.]*\D{0,12}\Z",
    ),
)
"""Whole texts, of a line."""
TASKS = (
    _kind(
        "fact",
        0.12,
        r"^\W*(?:what(?:'s| is| are| was| were)|who(?:'s| is| was| wrote| invented| painted)|when (?:is|"
        r"was|did|does)|"
        r"where (?:is|are|was|do|did)|which \w+|how (?:many|much|old|tall|far|long|big)|is |are |does |"
        r"do |did |can |"
        r"define\b|capital of|was ist|wer (?:ist|war)|wann|wo (?:ist|liegt)|wie (?:viele|alt|hoch|"
        r"hei(?:ß|ss)t)|welche\w* |"
        r"qu[eé] es|cu[aá]l es|qui[eé]n|cu[aá]ndo|d[oó]nde|cu[aá]nt\w+|qu'est-ce|quel(?:le)? est|qui (?:est|a)|"
        r"combien|quand|o[uù] (?:est|se))|是什么|是谁|多少|哪里|什么时候|几[个点]|首都",
    ),
    _kind(
        "transformation",
        0.22,
        r"correct (?:the|this|my)|fix (?:the )?(?:grammar|spelling|typo|punctuation)|list (?:all|the|"
        r"every)|find all|tl;dr|"
        r"翻译|改写|提取|总结|摘要|纠正|分类",
        r"translat\w+|rewrite|rephrase|paraphrase|shorten|capitali[sz]e|convert|reformat|format|sort|"
        r"extract|classify|"
        r"categori[sz]e|sentiment|label|synonyms?|antonyms?|spell|rhymes?|alphabetical\w*|proofread|summar\w+|"
        r"(?:ü|ue)bersetz\w+|korrigier\w*|formulier\w*|zusammenfass\w*|traduc\w+|tradui\w+|corrig\w+|"
        r"reformul\w+|"
        r"extrae\w*|extra(?:is|yez)\w*|resum\w+|résum\w+",
    ),
    _kind(
        "explanation or writing",
        0.38,
        r"\bhow (?:do|does|can|to|should|would)\b|\bwhy (?:is|are|do|does|did|can)\b|tell me (?:about|a|"
        r"how)|difference between|"
        r"act as|\bwrite (?:a|an|me|some|the)\b|por qu[eé]|wie (?:kann|funktioniert|mache?)|解释|为什么|怎么|如何|"
        r"写",
        r"explain\w*|describe|draft|compose|brainstorm|suggest|ideas?|poem|haiku|story|essay|e-?mail|"
        r"letter|blog|tweet|"
        r"slogans?|pretend|role-?play|recipe|tips|erkl[äa]r\w*|warum|schreib\w*|explica\w*|c[oó]mo|"
        r"escrib\w+|expliqu\w+|"
        r"pourquoi|comment|[eé]cri\w+|r[eé]dige\w*",
    ),
    _kind(
        "plan or comparison",
        0.5,
        r"pros and cons|trade-?off|\bvs\b|\bshould (?:i|we)\b|vor- und nachteile|比较|优缺点|计划|制定",
        r"compar\w+|versus|plan(?:ning|e)?|itinerary|strateg\w+|recommend\w*|budget|schedule|"
        r"vergleich\w*|ventajas|"
        r"avantages|planifi\w+",
    ),
    _kind(
        "code",
        0.5,
        r"\b(?:write|implement|create|build|code|generate|need|make|schreib|escrib|"
        r"[eé]cri)\w*\b.{0,60}\b(?:function|script|class|"
        r"program|quer(?:y|ies)|regex|api|endpoint|parser|component|unit test|sql|python|javascript|"
        r"typescript|java|rust|"
        r"golang|bash|funktion|funci[oó]n|fonction|skript|algorithm|c\+\+)|写.{0,20}(?:函数|代码|程序|脚本)",
    ),
    _kind(
        "problem",
        0.55,
        r"how (?:many|much|long|far|old)\b.{20}|find (?:the|all) (?:value|probability|number|area|"
        r"derivative|integral|root|"
        r"minimum|maximum|sum|x)|求解|计算|概率|积分",
        r"solve|calculate|compute|probability|integral|derivative|differentiate|integrate|equations?|"
        r"löse|berechne\w*|"
        r"wahrscheinlichkeit|resuelve|calcula\w*|probabilidad|calcule[rz]?|résou\w+|probabilité",
    ),
    _kind(
        "debugging",
        0.62,
        r"stack ?trace|segmentation fault|race condition|memory leak|code review|review (?:this|"
        r"my) (?:code|pull|diff)|"
        r"optimi[sz]e (?:this|my|the)|root cause|调试|报错|死锁|优化.{0,10}代码|"
        r"\bwhy (?:does|is|do) (?:my|this|the) .{0,60}(?:fail|error|crash|slow|hang|wrong|not work|"
        r"return|leak)",
        r"debug\w*|traceback|segfault|deadlocks?|refactor\w*|(?:nullpointer|type|value|key|"
        r"index)(?:exception|error)",
    ),
    _kind(
        "analysis",
        0.66,
        r"step by step|分析|评估|法律|诊断",
        r"analy[sz]e\w*|analysis|evaluat\w+|critiqu\w+|assess\w*|argue|implications?|contraindicat\w+|"
        r"diagnos\w+|"
        r"differential|liabilit\w+|enforceab\w+|legal(?:ly)?|clauses?|jurisdiction|regulat\w+|gdpr|dsgvo|"
        r"forecast\w*|"
        r"interpret\w*|hypothes[ei]s|regression|analysier\w*|bewerte\w*|rechtlich\w*|haftung\w*|"
        r"analiz\w+|eval[uú]\w+|"
        r"jur[ií]dic\w+|analyse[rz]?|[eé]valu\w+|juridique\w*",
    ),
    _kind(
        "design",
        0.78,
        r"\bdesign (?:a|an|the|for)\b.{0,80}(?:system|architecture|schema|protocol|algorithm|service|"
        r"pipeline|database|scale|"
        r"experiment|trial|language|compiler|cache|scheduler)|fault.tolerant|exactly.once|lock-?free|"
        r"system design|"
        r"migration (?:strategy|plan)|high.availability|设计.{0,20}(?:系统|架构|算法)|分布式",
        r"architect\w*|distributed|consensus|entwirf|entwerfe\w*|dise[ñn]a\w*|conçoi\w*|concev\w+",
    ),
    _kind(
        "proof",
        0.88,
        r"np-(?:hard|complete)|formal(?:ly)? (?:verif|specif|proof)|lower bound|upper bound|"
        r"leite .{0,60}\bher\b|证明|推导",
        r"prove|proof|disprove|derive|theorems?|lemma|counterexamples?|asymptotic\w*|convergence|"
        r"beweis\w*|herleit\w*|"
        r"demuestra\w*|demostr\w+|d[eé]montr\w+|prouve[rz]?",
    ),
)
"""Of these, the most demanding one that a text names."""
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)?")
_EXPERT = re.compile(
    r"byzantine|raft|paxos|crdts?|linearizab\w+|serializab\w+|idempoten\w+|quorum|mvcc|backpressure|"
    r"coherence|vectori[sz]\w+|"
    r"simd|cuda|kernels?|bayesian|likelihood|posterior|eigen\w+|manifolds?|topolog\w+|homomorphi\w+|"
    r"isomorphi\w+|markov|"
    r"stochastic|martingales?|heteroscedastic\w*|confound\w*|convex\w*|gradients?|lagrang\w+|"
    r"hamiltonian|fourier|laplace|"
    r"tensors?|quantum|thermodynamic\w*|enzym\w+|pharmacokinetic\w*|pathophysiolog\w+|comorbid\w*|"
    r"renal|hepatic|"
    r"anticoagul\w+|fiduciary|estoppel|indemnif\w+|tort(?:ious)?|antitrust|arbitration|amorti[sz]\w+|"
    r"arbitrage|hedg\w+|"
    r"zero-knowledge|elliptic|lattice|side-channel|cryptograph\w+|monads?|isolation|concurren\w+"
)
_CONSTRAINT = re.compile(
    r"must|should|without|exactly|ensure|assume|constraints?|don|only|muss|ohne|mindestens|"
    r"h[öo]chstens|debe|doit|sans"
)
_LIST = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+\S", re.MULTILINE)


class _Word(NamedTuple):
    kinds: tuple[Kind, ...]
    is_expert: bool
    is_constraint: bool


@lru_cache(maxsize=2**14)
def _word(word: str) -> _Word:
    """What one word says; cached, as texts share most of their words."""
    kinds = tuple(kind for kind in TASKS if kind.words is not None and kind.words.fullmatch(word))
    return _Word(kinds, _EXPERT.fullmatch(word) is not None, _CONSTRAINT.fullmatch(word) is not None)


def kind_of(text: str) -> Kind | None:
    """The most demanding kind of task that ``text`` names at either end; None where none is known."""
    return _read(text)[0]


def demand(text: str, length: int) -> float:
    """0 to 1. ``length`` is that of the whole conversation, in characters."""
    kind, experts, constraints = _read(text)
    if kind is None:
        level = REMARK if len(text) < 60 else UNKNOWN
    else:
        level = kind.level
        if kind in TRIVIAL:
            return level
    level += CONSTRAINT * min(constraints, 6) + EXPERT * min(experts, 4)
    return min(level + LENGTH * math.log2(max(length, 500) / 500), 1.0)


def _read(text: str) -> tuple[Kind | None, int, int]:
    """The kind of task, and how many experts' words and conditions there are."""
    text = text.strip().lower()
    if len(text) < 100 and "\n" not in text:
        for kind in TRIVIAL:
            if kind.phrases is not None and kind.phrases.search(text):
                return kind, 0, 0
    if len(text) > 2 * _END:
        text = f"{text[:_END]}\n{text[-_END:]}"
    words = [_word(word) for word in set(_WORD.findall(text))]
    kinds = [kind for word in words for kind in word.kinds]
    kinds += [kind for kind in TASKS if kind.phrases is not None and kind.phrases.search(text)]
    return (
        max(kinds, key=lambda kind: kind.level, default=None),
        sum(word.is_expert for word in words),
        sum(word.is_constraint for word in words) + len(_LIST.findall(text)),
    )
