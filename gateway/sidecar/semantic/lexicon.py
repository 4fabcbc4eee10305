"""Word lists that ``rules.py`` reads a question with. English; what is in no list is compared as it is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _groups(*lines: str) -> Mapping[str, str]:
    """Each word of a line, to the line's first."""
    return {word: line.split()[0] for line in lines for word in line.split()}


FUNCTION = _words(
    "a an the this that these those there here it its he him his she her hers they them their theirs we us our ours"
    " you your yours yourself i im me my mine myself one ones ones' someone somebody anyone anybody something"
    " anything is are am was were be been being do does did done doing have has had having can could will would"
    " shall should may might must need to of in on at by for with from as into onto about and or but if so then"
    " than too very just also even really actually exactly ever please kindly tell let what which who whom whose"
    " how why when where some any much many more lot lots kind sort type etc get got give go would'd ll s d re ve"
    " m t other own such only out up down off over like want way"
)
"""Words that carry little by themselves."""

CONTRACTIONS = {
    "can't": "can not",
    "cannot": "can not",
    "won't": "will not",
    "shan't": "shall not",
    "ain't": "is not",
    "cant": "can not",
    "dont": "do not",
    "doesnt": "does not",
    "didnt": "did not",
    "isnt": "is not",
    "wont": "will not",
    "what's": "what is",
    "whats": "what is",
    "let's": "let us",
}

NEGATIONS = _words(
    "not no never without none nobody nothing neither nor nowhere hardly barely lack lacking except excluding"
    " nicht nichts kein keine keinen keinem keiner ohne niemals pas jamais aucun aucune nunca jamás ningún ninguna"
)
NEGATIVE_PREFIXES = ("un", "in", "im", "ir", "il", "dis", "non", "mis", "anti", "de", "a")

_NUMBERS = _listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    " seventeen eighteen nineteen"
)
_TENS = _listed("twenty thirty forty fifty sixty seventy eighty ninety")
_ORDINALS = _listed(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth"
    " fifteenth sixteenth seventeenth eighteenth nineteenth"
)
UNITS_OF_TEN = {word: value for value, word in enumerate(_NUMBERS)}
TENS = {word: 10 * value for value, word in enumerate(_TENS, 2)}
ORDINALS = {word: value for value, word in enumerate(_ORDINALS, 1)} | {
    word[:-1] + "ieth": value for word, value in TENS.items()
}
OTHER_NUMBERS = {"half": 0.5, "quarter": 0.25, "dozen": 12.0, "double": 2.0, "twice": 2.0, "triple": 3.0}
OTHER_NUMBERS |= {"couple": 2.0, "thrice": 3.0, "pair": 2.0}
MAGNITUDES = {
    "hundred": 1e2,
    "thousand": 1e3,
    "k": 1e3,
    "lakh": 1e5,
    "lac": 1e5,
    "million": 1e6,
    "crore": 1e7,
    "billion": 1e9,
    "bn": 1e9,
    "trillion": 1e12,
}
ROMAN = {"II": 2, "III": 3, "IV": 4, "VI": 6, "VII": 7, "VIII": 8, "IX": 9, "XI": 11, "XII": 12}

UNITS = _groups(
    "nanometre nanometer nm nanometers nanometres",
    "millimetre millimeter millimeters millimetres mm",
    "centimetre centimeter centimeters centimetres cm",
    "metre meter meters metres",
    "kilometre kilometer kilometers kilometres km kms",
    "inch inches",
    "foot feet ft",
    "yard yards",
    "mile miles mi",
    "nautical",
    "lightyear lightyears",
    "milligram milligrams mg",
    "gram grams",
    "kilogram kilograms kilo kilos kg kgs",
    "tonne tonnes ton tons",
    "ounce ounces oz",
    "pound pounds lb lbs gbp £ quid",
    "stone stones",
    "millilitre milliliter milliliters millilitres ml",
    "litre liter liters litres",
    "gallon gallons",
    "pint pints",
    "quart quarts",
    "cup cups",
    "teaspoon teaspoons tsp",
    "tablespoon tablespoons tbsp",
    "celsius centigrade °c",
    "fahrenheit °f",
    "kelvin",
    "nanosecond nanoseconds ns",
    "millisecond milliseconds ms",
    "second seconds sec secs",
    "minute minutes min mins",
    "hour hours hr hrs hourly",
    "day days daily",
    "week weeks weekly fortnight",
    "month months monthly",
    "year years yr yrs yearly annually annual annum",
    "decade decades",
    "century centuries",
    "millennium millennia",
    "dollar dollars usd $ bucks",
    "euro euros eur €",
    "rupee rupees inr rs ₹",
    "yen jpy ¥",
    "yuan rmb cny",
    "franc francs chf",
    "peso pesos",
    "rouble roubles ruble rubles",
    "won krw",
    "bitcoin bitcoins btc",
    "ethereum eth ether",
    "cent cents",
    "pence penny",
    "bit bits",
    "byte bytes",
    "kilobyte kilobytes kb",
    "megabyte megabytes mb",
    "gigabyte gigabytes gb gib",
    "terabyte terabytes tb",
    "watt watts",
    "kilowatt kilowatts kw",
    "megawatt megawatts mw",
    "kwh",
    "volt volts",
    "amp amps ampere amperes",
    "ohm ohms",
    "joule joules",
    "calorie calories kcal",
    "hertz hz",
    "megahertz mhz",
    "gigahertz ghz",
    "pascal pascals",
    "bar bars",
    "psi",
    "mph",
    "kmh kph",
    "knot knots",
    "newton newtons",
    "horsepower hp",
    "acre acres",
    "hectare hectares",
    "degree degrees",
    "radian radians",
    "percent percentage % pct",
    "percentile",
    "decibel decibels",
    "mole moles",
    "molar",
    "atm atmospheres",
)

DATES = _groups(
    "january jan",
    "february feb",
    "march",
    "april apr",
    "june jun",
    "july jul",
    "august aug",
    "september sep sept",
    "october oct",
    "november nov",
    "december dec",
    "monday mondays",
    "tuesday tuesdays",
    "wednesday wednesdays",
    "thursday thursdays",
    "friday fridays",
    "saturday saturdays",
    "sunday sundays",
    "weekend weekends",
    "weekday weekdays",
    "spring",
    "summer",
    "autumn fall",
    "winter",
    "morning mornings",
    "noon midday",
    "afternoon",
    "evening evenings",
    "night nights overnight nighttime",
    "midnight",
    "today",
    "tonight",
    "yesterday",
    "tomorrow",
    "bc bce",
    "christmas xmas",
    "easter",
    "halloween",
    "thanksgiving",
    "diwali",
    "ramadan",
    "hanukkah",
    "medieval",
    "ancient",
    "modern",
    "h1",
    "h2",
    "q1",
    "q2",
    "q3",
    "q4",
)

FORMS = _groups(
    "table tabular",
    "json",
    "xml",
    "yaml",
    "csv",
    "html",
    "markdown",
    "latex",
    "bullet bulleted bullet-point bullet-points",
    "essay essays",
    "poem poems rhyme rhyming",
    "haiku",
    "limerick",
    "sonnet",
    "joke jokes",
    "dialogue",
    "paragraph paragraphs",
    "summary summarize summarise summarized summarised summarizing tldr",
    "outline",
    "diagram chart graph flowchart",
    "quiz",
    "flashcards flashcard",
    "step-by-step stepwise",
    "pseudocode",
    "snippet",
    "formula equation",
    "analogy metaphor",
    "translation translate translated",
    "headline headlines",
    "timeline",
    "checklist",
    "one-liner",
    "slogan",
    "definition define",
)
"""Forms that an answer may be asked for in."""
WEAK_FORMS = _groups(
    "list lists",
    "points bullets",
    "story stories",
    "song",
    "script",
    "sentence sentences",
    "word words",
    "line lines",
    "character characters",
    "page pages",
    "slide slides presentation",
    "example examples",
    "email e-mail",
    "letter",
    "tweet",
    "blog",
    "report",
    "review",
    "speech",
    "steps step",
    "code",
    "proof",
    "recipe",
    "thread",
    "title",
    "conversation",
    "numbers figures",
    "python",
    "verse",
    "emoji emojis",
    "uppercase capitals",
    "lowercase",
)
"""Forms only where the request says so: ``as a list``, ``in three sentences``, ``write a story``."""
NEARBY = _words("this next last past coming previous upcoming")
ASKS_FORM = _words("as in write give with using include including draft compose into by")

LENGTHS = _groups(
    "short shortly brief briefly concise concisely succinct succinctly quick",
    "long longer lengthy",
    "detail details detailed depth in-depth thorough thoroughly comprehensive elaborate extensively extensive",
    "shorter",
)
AUDIENCES = _groups(
    "child children kid kids toddler",
    "simple plain easy",
    "beginner beginners novice newbie dummies layman laymen laypeople layperson",
    "expert experts specialist advanced",
    "formal formally",
    "informal informally casual casually",
    "funny humorous humorously",
    "polite politely",
    "sarcastic sarcastically",
    "technical technically",
    "serious seriously",
    "five-year-old",
    "student students",
    "teacher teachers",
    "scientist scientists",
    "ceo executive executives",
    "teenager teenagers teen teens",
    "adult adults",
    "senior seniors elderly",
)
ASKS_AUDIENCE = _words("for to like as in a an using")

LANGUAGES = _words(
    "english french spanish german italian portuguese dutch russian chinese mandarin cantonese japanese korean arabic"
    " hindi urdu bengali tamil telugu marathi punjabi turkish persian farsi hebrew greek latin polish swedish"
    " norwegian danish finnish czech hungarian romanian ukrainian vietnamese thai indonesian malay swahili"
    " python java javascript typescript rust golang kotlin swift ruby php perl haskell scala c++ c# sql bash"
    " matlab fortran cobol lisp lua julia"
)
TOPICS = _words(
    "afghanistan africa america american argentina asia atlanta australia australian austria bangalore bangladesh"
    " barcelona beijing belgium berlin bombay boston brazil britain british bulgaria cairo calcutta california"
    " canada canadian chennai chicago chile china colombia cuba dallas delhi denmark dubai dublin egypt england"
    " ethiopia europe european finland florida france germany ghana gujarat hawaii houston hyderabad india indian"
    " indonesia iran iraq ireland islam israel istanbul italy jakarta japan kenya kerala kolkata korea lagos lisbon"
    " london madrid malaysia mars melbourne mercury mexico miami moscow mumbai nairobi nepal netherlands nigeria"
    " norway oslo pakistan paris peru philippines poland portugal pune rome russia saturn scotland seattle seoul"
    " shanghai singapore spain stockholm sweden switzerland sydney syria taiwan texas thailand tokyo toronto"
    " turkey uk ukraine usa venus vienna vietnam virginia wales warsaw washington jupiter neptune uranus pluto"
    " google apple microsoft amazon facebook twitter instagram whatsapp netflix tesla samsung sony nokia ibm intel"
    " amd nvidia oracle uber airbnb paypal snapchat linkedin quora reddit youtube tiktok android ios windows linux"
    " ubuntu debian macos iphone ipad kindle xbox playstation toyota honda ford bmw audi mercedes postgres"
    " postgresql mysql sqlite mongodb redis docker kubernetes react angular vue django flask rails pytorch"
    " tensorflow numpy pandas aws azure gcp excel word powerpoint photoshop christianity buddhism hinduism judaism"
    " christian muslim hindu jewish buddhist catholic protestant sikh trump obama clinton modi putin messi ronaldo"
    " einstein newton shakespeare gandhi hitler napoleon lincoln"
)
"""Names that people also write without a capital."""

ALIASES = {
    "u.s.": "usa",
    "u.s.a.": "usa",
    "america": "usa",
    "american": "usa",
    "americans": "usa",
    "states": "usa",
    "u.k.": "uk",
    "britain": "uk",
    "british": "uk",
    "indian": "india",
    "indians": "india",
    "chinese": "china",
    "pakistani": "pakistan",
    "german": "germany",
    "germans": "germany",
    "french": "france",
    "russian": "russia",
    "russians": "russia",
    "japanese": "japan",
    "american's": "usa",
    "canadian": "canada",
    "australian": "australia",
    "mexican": "mexico",
    "muslims": "muslim",
    "islamic": "islam",
    "hindus": "hindu",
    "jews": "jewish",
    "jew": "jewish",
    "christians": "christian",
    "bombay": "mumbai",
    "bangaluru": "bangalore",
    "bengaluru": "bangalore",
    "calcutta": "kolkata",
    "postgres": "postgresql",
    "golang": "go",
    "js": "javascript",
    "fb": "facebook",
    "yt": "youtube",
}

SYNONYMS = _groups(
    "buy purchase",
    "start begin commence",
    "method technique approach tip trick strategy procedure",
    "improve enhance better",
    "fast quick rapid quickly rapidly swift",
    "movie film",
    "opinion think view thought feel",
    "differ difference different distinguish distinction",
    "reason cause why",
    "big large huge",
    "small little tiny",
    "company firm",
    "price cost",
    "delete remove erase rid",
    "fix repair solve resolve",
    "sick ill",
    "doctor physician",
    "lawyer attorney",
    "make create build",
    "stop quit",
    "speak talk",
    "happen occur",
    "wealthy rich",
    "job career employment",
    "photo picture image pic photograph",
    "beautiful pretty",
    "smart intelligent clever",
    "mobile phone cellphone smartphone cell",
    "laptop notebook",
    "car automobile",
    "house home",
    "choose select pick",
    "need require",
    "earn money-make",
    "mean meaning",
    "recover retrieve restore",
    "good great",
    "important significant importance significance",
    "learn study",
    "book novel",
    "possible possibility",
    "website site",
    "app application",
    "salary pay wage",
    "famous popular",
    "weird strange odd",
    "college university",
    "effective efficient effectively efficiently",
    "easy simple easily simply easiest",
    "know find",
    "scary frightening",
    "song music",
    "people person human man-kind",
    "believe belief",
    "explain describe explanation",
    "country nation",
    "exam examination test",
    "become turn",
    "avoid prevent",
    "use utilize using",
    "old age",
    "tall height",
    "heavy weight weigh",
    "prepare preparation",
    "gain obtain acquire",
    "kill murder",
    "die death dead",
    "hack hacking",
    "lose reduce shed",
    "well properly correctly",
    "usa united",
    "live living life",
    "world earth globe",
    "ww2 wwii",
    "similar alike",
    "travel trip journey",
    "happy happiness",
    "drug medication medicine",
    "spouse partner",
    "freshman fresher",
    "vs versus",
    "favourite favorite best",
    "colour color",
    "below under",
    "present gift",
    "gasoline gas petrol",
    "equipment tool",
    "hereditary genetic",
    "determine calculate compute",
    "handle deal cope overcome",
    "rotate spin",
    "woman women female girl lady",
    "man men male boy guy",
    "effect impact implication affect consequence influence",
    "greatest biggest largest",
    "sign symptom",
    "become get",
    "child children kid",
    "seen watch watched saw see",
    "win won",
    "built making made",
    "necessary important",
    "suitable appropriate",
    "weird weirdest creepiest strangest",
    "amazing awesome incredible terrific",
    "identify recognize recognise",
    "predict forecast",
    "behaviour behavior",
    "teach taught",
    "invent inventor invention",
    "change replace switch",
    "rude disrespectful",
    "difference compare comparison",
    "receive recieve",
    "doze nap",
    "scared afraid frightened",
    "flight fly flown",
    "taller tall",
    "stuff item object",
    "english englis",
    "definition define meaning",
    "tv television",
    "marry marriage married",
    "food eat",
    "advice suggestion recommendation suggest recommend",
    "location place",
    "wrong bad",
    "rich wealth",
    "abroad overseas",
    "apply application",
    "interview interviewing",
)

OPPOSITES = tuple(
    (_words(left), _words(right))
    for left, right in (
        line.split(" / ")
        for line in (
            "with / after before",
            "during / after before",
            "safe safely safest safety / unsafe danger dangerous risky harm harmful hazardous",
            "before prior / after following",
            "increase raise gain grow rise boost / decrease reduce lower lose drop shrink minimize cut fall",
            "more most / less least fewer fewest",
            "best / worst",
            "better / worse",
            "good great / bad poor terrible",
            "benefit advantage pro upside strength / drawback disadvantage con downside risk harm weakness",
            "hot heat warm / cold cool",
            "start begin launch open / end finish stop quit close shut",
            "open unlock / close shut lock",
            "buy purchase / sell sold sale",
            "borrow / lend",
            "import / export",
            "win won / lose lost",
            "love like / hate dislike",
            "add append insert / remove delete subtract drop",
            "install / uninstall remove",
            "enable allow permit / disable prevent forbid block ban prohibit",
            "connect attach / disconnect detach",
            "encrypt encode / decrypt decode",
            "compress zip / decompress unzip extract expand",
            "upload / download",
            "push / pull",
            "read / write",
            "send / receive",
            "give given gave / receive take taken took get",
            "ask / answer",
            "teach / learn",
            "hire / fire",
            "accept / reject decline refuse",
            "approve / reject",
            "succeed success / fail failure",
            "create build / destroy delete",
            "maximum max highest largest biggest longest tallest / minimum min lowest smallest shortest",
            "high highest / low lowest",
            "highest tallest / lowest shortest",
            "largest biggest / smallest tiniest",
            "big large / small little tiny",
            "oldest / newest youngest",
            "old / new young",
            "longest / shortest",
            "long longer / short shorter",
            "fastest / slowest",
            "fast quick / slow",
            "cheap cheapest / expensive",
            "rich wealthy / poor",
            "easy easiest / hard hardest difficult",
            "strong strongest / weak weakest",
            "hard / soft",
            "heavy / light",
            "light / dark",
            "wet / dry",
            "full / empty",
            "left / right",
            "right correct / wrong incorrect",
            "true / false",
            "legal / illegal",
            "up / down",
            "over above / under below beneath",
            "in inside / out outside",
            "inner internal / outer external",
            "on / off",
            "first / last",
            "early earlier / late later",
            "north northern / south southern",
            "east eastern / west western",
            "internal / external",
            "public / private",
            "domestic / foreign international",
            "local / remote global",
            "left-handed / right-handed",
            "male man men boy guy / female woman women girl lady",
            "he him his / she her",
            "husband boyfriend / wife girlfriend",
            "father dad / mother mom mum",
            "son / daughter",
            "brother / sister",
            "uncle / aunt",
            "king / queen",
            "parent / child children kid",
            "adult / child children kid baby",
            "employ employer / employee",
            "teacher / student",
            "doctor / patient",
            "introvert / extrovert",
            "optimist / pessimist",
            "positive / negative",
            "debit / credit",
            "asset / liability",
            "profit / loss",
            "input / output",
            "front / back",
            "top / bottom",
            "day / night",
            "sunrise / sunset",
            "birth born / death died die",
            "alive / dead",
            "arrive arrival / depart departure leave",
            "entrance enter / exit",
            "ascend / descend",
            "acid / base alkali",
            "vertical / horizontal",
            "row / column",
            "serial series / parallel",
            "sync synchronous / async asynchronous",
            "encryption / decryption",
            "freeze freezing / melt melting boil boiling thaw",
            "melt / boil",
            "inhale / exhale",
            "supply / demand",
            "cause / effect cure prevent",
            "cause / treat cure prevent",
            "prevent / treat cure",
            "hypothyroidism hypothyroid / hyperthyroidism hyperthyroid",
            "hypoglycemia / hyperglycemia",
            "hypotension / hypertension",
            "bacteria bacterial / virus viral",
            "vegan / vegetarian",
            "proton / neutron electron",
            "atom / molecule",
            "liquid / gas solid",
            "wife / mistress",
            "possible / impossible",
            "similar same / different differ",
            "similarity / difference",
            "deposit / withdraw",
            "invest / divest",
            "save / spend waste",
            "awake / asleep",
            "sleep / wake",
            "remember / forget",
            "find / lose hide",
            "show / hide",
            "expand / collapse",
            "merge / split rebase",
            "upgrade / downgrade",
            "import / export",
            "ascending / descending",
            "inclusive / exclusive",
            "include / exclude",
            "mandatory required / optional",
            "major / minor",
            "theory / practice",
            "cat kitten / dog puppy",
            "tea / coffee",
            "beginner novice / expert advanced",
            "male / female",
            "straight / gay",
            "single / married",
            "married / divorced",
            "sunny / rainy",
            "deaf / blind",
            "guilty / innocent",
            "victory / defeat",
            "attack / defend defense",
            "war / peace",
            "predator / prey",
            "buyer / seller",
            "landlord / tenant",
            "lender / borrower",
            "friend / enemy",
            "hero / villain",
            "question / answer",
            "problem / solution",
            "theist / atheist",
            "liberal democrat / conservative republican",
            "capitalism capitalist / communism communist socialism socialist",
            "breakfast / lunch dinner supper",
            "lunch / dinner",
            "indoor / outdoor",
            "online / offline",
            "software / hardware",
            "client / server",
            "frontend / backend",
            "undergraduate / graduate postgraduate",
        )
    )
)
"""Stems that, one side each, turn a question into another."""

QUESTION_KINDS = {
    "why": "why",
    "when": "when",
    "where": "where",
    "who": "who",
    "whom": "who",
    "whose": "whose",
    "how": "how",
    "what": "what",
    "which": "what",
}
AUXILIARIES = _groups(
    "is are am do does have has",
    "was were did had",
    "will",
    "can could may might",
    "must should shall need",
)
"""At the beginning of a question, those of one line ask alike."""
MEASURES = _words(
    "many much long old far often tall big fast high deep heavy large soon wide quickly hot cold"
)
"""After ``how``: each asks for another quantity."""

MEASURED = {
    "much": _words("cost costs price prices fee fees salary"),
    "old": _words("age"),
    "tall": _words("height"),
    "far": _words("distance"),
    "high": _words("height altitude elevation"),
    "deep": _words("depth"),
    "heavy": _words("weight"),
    "big": _words("size"),
    "large": _words("size"),
    "many": _words("number"),
    "long": _words("length duration time"),
    "fast": _words("speed"),
    "hot": _words("temperature"),
}
"""``how old`` is asked by ``age`` too."""

STRICT_QUANTIFIERS = _groups(
    "all every each everyone everybody everything entire whole",
    "only solely exclusively",
    "always",
    "both",
    "either",
    "sometimes occasionally",
    "few",
    "majority",
    "minority",
)
DIRECTED = _words(
    "to from into than by for over under of with on against before after in at versus without onto"
)
SYMMETRIC = _words("and or vs versus a an the")
"""What may stand between two things whose order does not matter."""
JOINING = _words("and or vs versus")
MUTUAL = _words(
    "difference differences differ different compare comparison similar similarity relation relationship"
)


def same_group(words: Iterable[str], groups: Mapping[str, str]) -> frozenset[str]:
    """The groups that the words stand for."""
    return frozenset(groups[word] for word in words if word in groups)


CURRENCIES = frozenset(
    UNITS[word] for word in ("dollar", "euro", "rupee", "gbp", "yen", "yuan", "franc", "peso", "won")
)
ASKS_UNIT = _words("many much per in into to from every each convert between")
"""Before a unit: it is asked about. Elsewhere ``year`` and ``bit`` are mere words, unless a number stands before."""
SOFT_NUMBERS = (1.0,)
"""``first`` may be there or not."""
COMMON = _words(
    "government govt language programming engineering university college president best resources love question"
    " questions answer answers website online project management science computer software app business school"
    " internet web world war people country city state company bank law life god day year movie book game phone"
    " laptop exam test course degree student india's prime minister election economy black money new old top"
    " good great online game games movies books food music art history physics chemistry biology math maths"
    " mathematics economics medicine psychology philosophy marketing design developer engineer doctor lawyer"
    " teacher manager mechanical electrical civil chemical rs inr usd phd mba pm dr mr mrs ms ceo hd tv pc"
    " faster fastest easy fluent fluency skills skill speaking english's year's iq u us ok diy faq"
)
"""Words that some write with a capital, and that are no names."""

SUFFIXES = frozenset(
    _words(
        "ion ation ional ational al er or ment it iv at l ist ic ical ar abl ibl ness ant ent anc enc s is iz ier iest"
        " est n r th"
    )
    | {""}
)
"""Endings, as stemmed, that make another form of the same word."""
GENERIC = _words(
    "best good great top nice way method people person thing stuff start know use find work happen become really new"
    " important main major real true actual currently currently today recommended various certain possible full well"
    " make take look help ask see put keep come better amazing able successfully properly effectively ideal perfect"
    " opinion idea favourite experience difference someone everyone anyone indian overall feel say call consider"
)
"""Words that may be there or not, or one for another, without making it another question."""
