"""Whether the right answer to a question changes over time."""

from __future__ import annotations

import re

MAX_CHARACTERS = 4000
"""Only the end of a longer text is searched, where the question is."""

_NOW = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|right now|just now|at the moment|as of now|nowadays|these days"
    r"|so far"
    r"|currently|recently|lately|up[- ]to[- ]date|breaking|real[- ]?time|this very moment"
    r"|(?:this|next|last|past|coming|upcoming|current) (?:morning|afternoon|evening|night|day|week|weekend"
    r"|month|quarter"
    r"|year|season|decade|monday|tuesday|wednesday|thursday|friday|saturday|sunday|january|february|march"
    r"|april|may|june"
    r"|july|august|september|october|november|december|spring|summer|autumn|fall|winter)"
    r"|(?:in|for|over|within) the (?:last|past|next|coming) (?:\w+ )?(?:hour|day|week|month|year)s?"
    r"|(?:is|are|am|do|does|can|should|will) .{0,60}\bnow|\w+ ago|since when|still)\b|\b(?:now|yet"
    r"|any ?more)\?",
    re.IGNORECASE,
)
_LATEST = re.compile(
    r"\b(?:latest|newest|most recent|current|present|upcoming|ongoing|trending|live|updated)\b"
    r"(?! (?:common ancestor|limiter|divider|flow|flowing|density|source|mirror|transformer|possible|start"
    r"|finish|in (?:a|an|the)"
    r" (?:circuit|wire|resistor|coil|ocean|river)|stream|wire|perfect|tense|participle|simple"
    r"|value of money|birth|music"
    r"|with|from|in a|through|user|directory|thread|process|branch|working|line|row|element|node|cell|index"
    r"|position"
    r"|object|frame|locale|timestamp|date in|time in (?:python|java|javascript|c|rust|go|php|sql))\b)",
    re.IGNORECASE,
)
_CURRENT_AS_NOUN = re.compile(
    r"\b(?:electric(?:al)?|alternating|direct|ac|dc|ocean|eddy|induced|the|a|gulf|rip) current(?:s)?"
    r"(?= (?:in|through|of|flow|is|and|with|when|if|from|to|do|does|change)\b|[?.!,]|$)"
    r"|\b(?:does|do|how) current (?:flow|change|pass)\w*",
    re.IGNORECASE,
)
_CHANGING = re.compile(
    r"\b(?:weather|forecast|temperature outside|air quality|pollen|traffic)\b"
    r"(?=.{0,40}\b(?:in|for|at|on|near|here|outside|like|be|is|will)\b|\?|$)"
    r"|\b(?:stock|share|oil|gas|petrol|gold|silver|bitcoin|btc|ethereum|crypto\w*|house|flight|ticket"
    r"|electricity|milk)"
    r" (?:price|prices|rate|rates|value|market cap|quote)\b"
    r"|\bprice of (?:a |an |the )?\w+|\bhow much (?:is|are|does|do) .{1,40}\b(?:cost|worth|selling|trading)\b"
    r"|\b(?:exchange|interest|mortgage|inflation|unemployment) rates?\b"
    r"|\b(?:usd|eur|gbp|jpy|chf|cny|inr|btc|eth|dollars?|euros?) (?:to|in|vs) (?:usd|eur|gbp|jpy|chf|cny|inr|btc)\b"
    r"|\b(?:usd|eur|gbp|jpy|chf) ?/? ?(?:usd|eur|gbp|jpy|chf)\b|^\W*(?:\w+ ){1,2}(?:stock|shares?)\W*$"
    r"|\bwhat(?:'s| is) the minimum wage\b|\bmost (?:popular|visited|followed|downloaded|streamed)\b"
    r"|\bwho (?:holds the .{0,30}record|is .{1,40} (?:dating|married to))\b"
    r"|\b(?:which|what) (?:team|club|player|party|country) (?:leads|is leading|tops)\b"
    r"|\b(?:news|headlines|box office|standings|leaderboard|charts?\b top|top charts|election results"
    r"|poll numbers)\b"
    r"|\b(?:score|result) of (?:the|last|this)\b.{0,40}\b(?:game|match|race|final|fight|election)\b"
    r"|\bwho(?:'s| is| are|s) (?:the )?(?:[\w']+ ){0,3}(?:president|prime minister|chancellor|king|queen|pope"
    r"|mayor|governor"
    r"|ceo|cto|cfo|chief executive|chair(?:man|woman|person)?|champion|coach|manager|captain|leader|head"
    r"|owner|minister"
    r"|richest|tallest|oldest living|world record holder)\b"
    r"|\bwho (?:won|is winning|leads|will win)\b(?!.{0,60}\b(?:1\d{3}|20[01]\d)\b)"
    r"|\b(?:latest|newest|current|which|what) (?:stable |lts )?(?:version|release)\b"
    r"|\b(?:opening|business|office) hours\b|\b(?:schedule|timetable|departures?|arrivals?"
    r"|fixtures?)\b.{0,40}\b(?:for|of|from|at|to)\b"
    r"|\bis .{1,60}\b(?:open|closed|down|out|available|released|in stock|online|alive|dead|still)\b.{0,20}\?"
    r"|\bwhen (?:is|does|will) (?:the )?(?:next|new)\b|\bnext (?:train|bus|flight|game|match|episode"
    r"|election|eclipse|release)\b"
    r"|\bhow (?:old is|long (?:until|till|before|ago)|many (?:days|weeks|months|hours) (?:until|till|left"
    r"|since))\b"
    r"|\b(?:what|which) (?:is the )?(?:time|day|date|year|month) (?:is it|is today|in)\b"
    r"|\bwhat is the (?:time|date)\b"
    r"|\bwhat(?:'s| is) (?:happening|going on|new|trending|on tv)\b|\bhow many .{1,40}\b(?:subscribers"
    r"|followers|users) (?:does|do|has)\b"
    r"|\b(?:population|gdp|net worth|market cap\w*) of\b(?!.{0,60}\b(?:in|of) (?:1\d{3}|20\d\d)\b)",
    re.IGNORECASE,
)
_OFFICES = (
    r"(?:(?:\w{0,12})(?:präsident|kanzler|minister|könig|trainer|meister|papst|chef|rekordhalter|bürgermeister)(?:in)?"
    r"|président\w*|premi[eè]re? ministre|ministre|chancel\w+|roi|reine|pape|maire|pdg|entraîneur|champion\w*"
    r"|president[ea]?|primer[ao]? ministr[oa]|rey|reina|papa|alcalde\w*|canciller|entrenador\w*|campe[oó]n\w*"
    r"|director\w*)"
)
_CHANGING_ELSEWHERE = re.compile(
    r"\bhow many people live\b|"
    # German
    rf"\bwer (?:ist|wird|sind) (?:\w+ ){{0,3}}{_OFFICES}\b|\bwer (?:führt|gewinnt|hat .{{0,60}}gewonnen)\b"
    r"|\bwas gibt(?: e|')s neues\b|\b(?:was|wie ?viel) kostet\b|\b\w*(?<!nobel)(?:preise?|zinsen|leitzins|wetter)\b"
    r"|\b(?:aktien|börsen|wechsel|gold|bitcoin|dollar|euro)-?kurse?\b|\bkurs (?:von|des|der)\b"
    r"|\bwie (?:alt ist|viel uhr|lange noch)\b|\bwelche[rsn]? (?:tag|jahr|datum|monat)\b.{0,12}\b(?:ist|haben)\b"
    r"|\b(?:neueste|letzte|nächste|kommende)[rsnm]?\b|\bwie viele (?:einwohner|menschen leben)\b"
    r"|\b(?:öffnungszeiten|nachrichten|fahrplan|tabellenführer)\b"
    # French
    rf"|\bqui (?:est|sera) (?:\S+ ){{0,3}}?(?:l['’])?{_OFFICES}\b|\bqui (?:a gagné|va gagner|mène)\b"
    r"|\bquel(?:le)? (?:temps|heure|jour|date|année|mois)\b|\bcombien (?:coûte|vaut|d['’]habitants)\b"
    r"|(?<!au )\b(?:prix|cours|taux) (?:de |du |des |d['’])|\bquel âge a\b"
    r"|\bdernière?s? (?:version|modèle|film|album|match)"
    r"|\b(?:prochaine?s?|horaires?|actualités?|température)\b"
    # Spanish
    rf"|\bquién(?:es)? (?:es|son|será) (?:\w+ ){{0,3}}?{_OFFICES}\b|\bquién (?:ganó|gana|lidera|ganará|ha ganado)\b"
    r"|\bqué (?:hora|tiempo|día|fecha|año|mes)\b|\bcuánto (?:cuesta|vale|está)\b|\b(?:precio|cotización|tasa) del?\b"
    r"|\bcuántos (?:años tiene|habitantes)\b|\b(?:últim[ao]s? |próxim[ao]s? |horarios?\b|el tiempo en\b)",
    re.IGNORECASE,
)
_OTHER_LANGUAGES = re.compile(
    r"\b(?:heute|morgen früh|gestern|jetzt|aktuell\w*|derzeit|neueste\w*|diese woche|wie spät|wetter"
    r"|aujourd['’]hui|maintenant|demain|hier soir|actuel(?:le|lement|s)?|cette semaine|météo"
    r"|dernières? nouvelles"
    r"|hoy|ahora|mañana|ayer|actual(?:mente)?|esta semana|últim[ao]s? noticias?|noticias"
    r"|hoje|agora|amanhã|ontem|atualmente|esta semana|notícias"
    r"|oggi|adesso|domani|ieri|attualmente|questa settimana|notizie"
    r"|vandaag|nu|morgen|gisteren|momenteel|deze week|nieuws"
    r"|idag|i dag|imorgon|dzisiaj|dziś|teraz|jutro|bugün|şimdi|yarın|güncel"
    r"|сегодня|сейчас|завтра|вчера|новости|погода|сьогодні|зараз"
    r"|आज|अभी|कल|اليوم|الآن|غدا|امروز|اکنون|hôm nay|bây giờ|hari ini|sekarang|besok)\b"
    r"|今天|现在|現在|明天|昨天|最新|目前|今日|今すぐ|明日|昨日|天気|오늘|지금|내일|어제|현재|최신|날씨|วันนี้|ตอนนี้",
    re.IGNORECASE,
)
_TITLE = re.compile(r"[\"“«'‘][^\"”»'’]{1,80}[\"”»'’](?=\W|$)")
_NAMED = re.compile(
    r"\b(?:USA Today|Psychology Today|Apocalypse Now|Today Show|Daily News|Fox News|Stay Tuned)\b"
)
_STEADY = re.compile(
    r"\b(?:stop(?:ped)? .{0,20}still|still life|stand(?:ing)? still|weather (?:the storm|vane|proof)"
    r"|climate and weather"
    r"|weather and climate|king (?:arthur|lear|kong)|right now+here|live (?:in|on|with|together|longer"
    r"|forever))\b",
    re.IGNORECASE,
)
_DEFINED = re.compile(
    r"^\W*(?:(?:what does|define|explain|what is meant by|what is the (?:definition|meaning) of"
    r"|how do(?:es)?|how to"
    r"|what is (?:a|an)|translate)\b)(?!.*\b(?:today|tonight|tomorrow|right now|currently|this (?:week"
    r"|month|year))\b)",
    re.IGNORECASE,
)


def is_time_sensitive(question: str) -> bool:
    """True for today, the latest, prices, office holders, ages, schedules and the like. When in doubt, True.

    English, much of German, French and Spanish, and the words for now and today in other large languages. Quoted
    titles are not looked into.
    """
    text = question[-MAX_CHARACTERS:].replace("’", "'")
    if _OTHER_LANGUAGES.search(text) or _CHANGING_ELSEWHERE.search(text):
        return True
    for pattern in (_TITLE, _NAMED, _STEADY, _CURRENT_AS_NOUN):
        text = pattern.sub(" ", text)
    if _DEFINED.match(text):
        return False
    return bool(_NOW.search(text) or _LATEST.search(text) or _CHANGING.search(text))
