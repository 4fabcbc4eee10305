"""How demanding a request is by the kind of task it names and by its length, where no trained score applies.

Rules of our own, without training: the kind is told by the words that people ask with. How far the order agrees with
gradings that were made without knowing the rules stands in ``docs/cascade.md``.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import NamedTuple

from gateway.cascade.instruction import instruction_of

_END = 300
"""Characters at either end of an instruction in which its task is looked for; what lies between mostly tells why."""
LENGTH = 0.02
"""Added for each doubling of a conversation beyond 500 characters."""
CONDITIONS, TECHNICAL = 0.06, 0.06
"""Times ln(1 + n), for what binds the answer and for abbreviations and identifiers: the tenth says less than the first.
These and what follows are shares of what a kind of task leaves to the highest score."""
STEP = 0.03
"""Added for each thing that is to be done, up to four."""
LONG = 0.5
"""Times the share of words of nine letters and more."""
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
        r"every)|tl;dr|"
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
        r"python|javascript|typescript|rust|golang|haskell|kotlin|sql|postgres\w*|regex|react|bash|css|dockerfile|"
        r"kubernetes|terraform|pandas|numpy",
    ),
    _kind(
        "problem",
        0.55,
        r"how (?:many|much|long|far|old)\b.{20}|find all\b.{0,40}(?:integers|numbers|solutions|functions|pairs|values)|"
        r"expected (?:number|value)|find (?:the|all) (?:value|probability|number|area|"
        r"derivative|integral|root|"
        r"minimum|maximum|sum|x)|求解|计算|概率|积分",
        r"solve|puzzles?|calculate|compute|probability|integral|derivative|differentiate|integrate|equations?|"
        r"löse|berechne\w*|"
        r"wahrscheinlichkeit|resuelve|calcula\w*|probabilidad|calcule[rz]?|résou\w+|probabilité",
    ),
    _kind(
        "strict form",
        0.58,
        r"iambic|without the letter|syllables? each|every (?:word|line|sentence) (?:must|starts?|begins?|ends?|is)|"
        r"格律|回文",
        r"sonnets?|sonetts?|villanelles?|sestinas?|palindrom\w*|anagram\w*|lipogram\w*|acrosti\w*|pastiches?|limericks?|"
        r"alexandrin\w*|hexameters?|ciphers?|cryptograms?",
    ),
    _kind(
        "debugging",
        0.62,
        r"stack ?trace|segmentation fault|race condition|memory leak|code review|review (?:this|"
        r"my) (?:code|pull|diff)|"
        r"optimi[sz]e (?:this|my|the)|root cause|调试|报错|死锁|优化.{0,10}代码|"
        r"\bwhy (?:does|is|do) (?:my|this|the) .{0,60}(?:fail|error|crash|slow|hang|wrong|not work|"
        r"return|leak)",
        r"debug\w*|bugs?|hangs|crash\w*|miscompil\w*|flaky|traceback|segfault|deadlocks?|refactor\w*|(?:nullpointer|type|value|key|"
        r"index)(?:exception|error)",
    ),
    _kind(
        "analysis",
        0.66,
        r"分析|评估|法律|诊断",
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
        r"migration (?:strategy|plan)|zero.downtime|high.availability|from scratch|operating system kernel|"
        r"(?:regex|database|storage|query|physics|rendering) engine|设计.{0,20}(?:系统|架构|算法)|分布式",
        r"architect\w*|distributed|consensus|compilers?|emulators?|hypervisors?|jit|"
        r"entwirf|entwerfe\w*|dise[ñn]a\w*|conçoi\w*|concev\w+",
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
_TRANSFORMATION = next(kind for kind in TASKS if kind.name == "transformation")
_HEAD = 3
"""Words within which an instruction has its verb."""
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
_LIST = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+\S", re.MULTILINE)


class _Word(NamedTuple):
    kinds: tuple[Kind, ...]
    is_expert: bool


@lru_cache(maxsize=2**14)
def _word(word: str) -> _Word:
    """What one word says; cached, as texts share most of their words."""
    kinds = tuple(kind for kind in TASKS if kind.words is not None and kind.words.fullmatch(word))
    return _Word(kinds, _EXPERT.fullmatch(word) is not None)


def kind_of(text: str) -> Kind | None:
    """The most demanding kind of task that ``text`` names at either end of what it asks; None where none is known."""
    return _trivial(text) or _task(instruction_of(text).text)[0]


def demand(text: str, length: int) -> float:
    """0 to 1. ``length`` is that of the whole conversation, in characters."""
    if (trivial := _trivial(text)) is not None:
        return trivial.level
    asked = instruction_of(text)
    kind, experts = _task(asked.text)
    unknown = REMARK if len(text) < 60 else UNKNOWN
    level = unknown if kind is None else kind.level
    more = CONDITIONS * math.log1p(asked.conditions + len(_LIST.findall(asked.text)))
    more += TECHNICAL * math.log1p(asked.technical) + LONG * asked.long
    more += STEP * min(asked.steps, 4) + EXPERT * min(experts, 4)
    more += LENGTH * math.log2(max(length, 500) / 500)
    return level + (1 - level) * min(more, 1.0)


def _trivial(text: str) -> Kind | None:
    text = text.strip().lower()
    if len(text) >= 100 or "\n" in text:
        return None
    return next((kind for kind in TRIVIAL if kind.phrases is not None and kind.phrases.search(text)), None)


def _task(asked: str) -> tuple[Kind | None, int]:
    """The kind of task that an instruction names, and how many experts' words it has."""
    asked = asked.lower()
    if len(asked) > 2 * _END:
        asked = f"{asked[:_END]}\n{asked[-_END:]}"
    words = _WORD.findall(asked)
    read = [_word(word) for word in set(words)]
    experts = sum(word.is_expert for word in read)
    # The verb at its head is the task: a lease to be rewritten is no question of law.
    if any(_TRANSFORMATION in _word(word).kinds for word in words[:_HEAD]):
        return _TRANSFORMATION, experts
    kinds = [kind for word in read for kind in word.kinds]
    kinds += [kind for kind in TASKS if kind.phrases is not None and kind.phrases.search(asked)]
    return max(kinds, key=lambda kind: kind.level, default=None), experts
