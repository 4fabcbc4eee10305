"""What the demo model is meant to know: small tables of common knowledge."""

from __future__ import annotations

COUNTRIES = """
France|Paris|French|euro|Europe
Germany|Berlin|German|euro|Europe
Spain|Madrid|Spanish|euro|Europe
Italy|Rome|Italian|euro|Europe
Portugal|Lisbon|Portuguese|euro|Europe
Greece|Athens|Greek|euro|Europe
Ireland|Dublin|English|euro|Europe
Austria|Vienna|German|euro|Europe
Finland|Helsinki|Finnish|euro|Europe
Poland|Warsaw|Polish|zloty|Europe
Sweden|Stockholm|Swedish|krona|Europe
Norway|Oslo|Norwegian|krone|Europe
Denmark|Copenhagen|Danish|krone|Europe
Iceland|Reykjavik|Icelandic|krona|Europe
Hungary|Budapest|Hungarian|forint|Europe
Romania|Bucharest|Romanian|leu|Europe
Bulgaria|Sofia|Bulgarian|lev|Europe
Croatia|Zagreb|Croatian|euro|Europe
Serbia|Belgrade|Serbian|dinar|Europe
Slovakia|Bratislava|Slovak|euro|Europe
Ukraine|Kyiv|Ukrainian|hryvnia|Europe
Estonia|Tallinn|Estonian|euro|Europe
Latvia|Riga|Latvian|euro|Europe
Lithuania|Vilnius|Lithuanian|euro|Europe
England|London|English|pound|Europe
Scotland|Edinburgh|English|pound|Europe
Wales|Cardiff|Welsh|pound|Europe
Turkey|Ankara|Turkish|lira|Asia
Japan|Tokyo|Japanese|yen|Asia
China|Beijing|Chinese|yuan|Asia
India|New Delhi|Hindi|rupee|Asia
Thailand|Bangkok|Thai|baht|Asia
Vietnam|Hanoi|Vietnamese|dong|Asia
Indonesia|Jakarta|Indonesian|rupiah|Asia
Malaysia|Kuala Lumpur|Malay|ringgit|Asia
Nepal|Kathmandu|Nepali|rupee|Asia
Mongolia|Ulaanbaatar|Mongolian|tugrik|Asia
Iran|Tehran|Persian|rial|Asia
Iraq|Baghdad|Arabic|dinar|Asia
Israel|Jerusalem|Hebrew|shekel|Asia
Jordan|Amman|Arabic|dinar|Asia
Lebanon|Beirut|Arabic|pound|Asia
Pakistan|Islamabad|Urdu|rupee|Asia
Bangladesh|Dhaka|Bengali|taka|Asia
Cambodia|Phnom Penh|Khmer|riel|Asia
Egypt|Cairo|Arabic|pound|Africa
Morocco|Rabat|Arabic|dirham|Africa
Kenya|Nairobi|Swahili|shilling|Africa
Nigeria|Abuja|English|naira|Africa
Ghana|Accra|English|cedi|Africa
Ethiopia|Addis Ababa|Amharic|birr|Africa
Senegal|Dakar|French|franc|Africa
Tunisia|Tunis|Arabic|dinar|Africa
Algeria|Algiers|Arabic|dinar|Africa
Uganda|Kampala|English|shilling|Africa
Zambia|Lusaka|English|kwacha|Africa
Zimbabwe|Harare|English|dollar|Africa
Angola|Luanda|Portuguese|kwanza|Africa
Canada|Ottawa|English|dollar|North America
Mexico|Mexico City|Spanish|peso|North America
Cuba|Havana|Spanish|peso|North America
Jamaica|Kingston|English|dollar|North America
Brazil|Brasilia|Portuguese|real|South America
Argentina|Buenos Aires|Spanish|peso|South America
Chile|Santiago|Spanish|peso|South America
Peru|Lima|Spanish|sol|South America
Colombia|Bogota|Spanish|peso|South America
Ecuador|Quito|Spanish|dollar|South America
Uruguay|Montevideo|Spanish|peso|South America
Australia|Canberra|English|dollar|Oceania
New Zealand|Wellington|English|dollar|Oceania
Fiji|Suva|English|dollar|Oceania
"""
OPPOSITES = """hot cold|big small|tall short|fast slow|happy sad|light dark|open closed|young old|rich poor|full empty
early late|up down|left right|near far|hard soft|wet dry|loud quiet|strong weak|clean dirty|high low|deep shallow
thick thin|wide narrow|sweet sour|brave afraid|day night|summer winter|north south|east west|first last|true false
begin end|push pull|give take|buy sell|laugh cry|win lose|love hate|friend enemy|question answer|always never
inside outside|above below|before after|sharp blunt|rough smooth|cheap expensive|simple difficult"""
PLURALS = """cat cats|dog dogs|box boxes|child children|mouse mice|foot feet|tooth teeth|goose geese|man men|woman women
person people|leaf leaves|knife knives|wolf wolves|city cities|baby babies|bus buses|dish dishes|sheep sheep|fish fish
potato potatoes|tomato tomatoes|hero heroes|story stories|berry berries|church churches|fox foxes|tree trees"""
SYMBOLS = """hydrogen H|helium He|carbon C|nitrogen N|oxygen O|sodium Na|magnesium Mg|aluminium Al|silicon Si|sulfur S
chlorine Cl|potassium K|calcium Ca|iron Fe|copper Cu|zinc Zn|silver Ag|tin Sn|iodine I|gold Au|mercury Hg|lead Pb
uranium U|neon Ne|argon Ar|nickel Ni|platinum Pt|lithium Li|boron B|fluorine F"""
COLOURS = """the sky blue|grass green|snow white|coal black|a banana yellow|blood red|a carrot orange|chocolate brown
an elephant grey|a lemon yellow|milk white|a strawberry red|a flamingo pink|a frog green|the sea blue|an aubergine purple
the sun yellow|a polar bear white|a raven black|an emerald green|a ruby red|a sapphire blue"""
ANIMALS = """dog bark puppy 4|cat meow kitten 4|cow moo calf 4|sheep baa lamb 4|horse neigh foal 4|pig oink piglet 4
duck quack duckling 2|hen cluck chick 2|lion roar cub 4|wolf howl pup 4|goat bleat kid 4|frog croak tadpole 4
owl hoot owlet 2|bee buzz larva 6|bear growl cub 4|goose honk gosling 2|donkey bray foal 4|elephant trumpet calf 4"""
LEGS = """spider 8|ant 6|butterfly 6|snake 0|fish 0|crab 10|ostrich 2|beetle 6|penguin 2|worm 0|octopus 0|kangaroo 2"""
PLANETS = ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December"]  # fmt: skip
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
AUTHORS = """Hamlet|William Shakespeare
Romeo and Juliet|William Shakespeare
Don Quixote|Miguel de Cervantes
War and Peace|Leo Tolstoy
Pride and Prejudice|Jane Austen
Oliver Twist|Charles Dickens
Faust|Goethe
The Odyssey|Homer
Les Miserables|Victor Hugo
Frankenstein|Mary Shelley
Dracula|Bram Stoker
Moby Dick|Herman Melville
The Trial|Franz Kafka
Alice in Wonderland|Lewis Carroll
Treasure Island|Robert Louis Stevenson
Robinson Crusoe|Daniel Defoe"""
MISC = """How many continents are there|There are seven continents.
How many planets are in the solar system|There are eight planets in the solar system.
What is the largest planet|The largest planet is Jupiter.
What is the smallest planet|The smallest planet is Mercury.
What is the largest ocean|The largest ocean is the Pacific Ocean.
What is the longest river in the world|The longest river in the world is the Nile.
What is the highest mountain in the world|The highest mountain in the world is Mount Everest.
What is the largest animal|The largest animal is the blue whale.
What is the fastest land animal|The fastest land animal is the cheetah.
What is the tallest animal|The tallest animal is the giraffe.
What is water made of|Water is made of hydrogen and oxygen.
At what temperature does water boil|Water boils at 100 degrees Celsius.
At what temperature does water freeze|Water freezes at 0 degrees Celsius.
How many legs does a table have|A table usually has four legs.
How many wheels does a car have|A car has four wheels.
How many wheels does a bicycle have|A bicycle has two wheels.
How many sides does a triangle have|A triangle has three sides.
How many sides does a square have|A square has four sides.
How many sides does a hexagon have|A hexagon has six sides.
How many letters are in the alphabet|There are 26 letters in the alphabet.
How many colours are in a rainbow|There are seven colours in a rainbow.
How many days are in a year|There are 365 days in a year.
How many months are in a year|There are 12 months in a year.
How many days are in a week|There are 7 days in a week.
How many seasons are there|There are four seasons: spring, summer, autumn and winter.
Which planet is called the red planet|Mars is called the red planet.
Which planet has rings|Saturn has large rings.
What do bees make|Bees make honey.
What do cows drink|Cows drink water.
What do plants need to grow|Plants need light, water and air to grow.
Where does the sun rise|The sun rises in the east.
Where does the sun set|The sun sets in the west.
Who painted the Mona Lisa|Leonardo da Vinci painted the Mona Lisa.
Who discovered gravity|Isaac Newton described gravity.
Who was the first person on the moon|Neil Armstrong was the first person on the moon.
What is the meaning of life|Some say it is 42. I think it is to be kind and curious.
What is an API gateway|An API gateway stands in front of services, checks who is calling, and passes requests on.
What is a token|A token is a small piece of text, such as a word or a part of a word.
What is a language model|A language model predicts the next token of a text, again and again.
What is Python|Python is a programming language that is easy to read.
What is a KV cache|A KV cache keeps the keys and values of past tokens, so that they need not be computed again."""

SHORT_WORDS = [
    "cat",
    "dog",
    "sun",
    "moon",
    "tree",
    "book",
    "fish",
    "bird",
    "star",
    "door",
    "hand",
    "milk",
    "bread",
    "apple",
    "house",
    "water",
    "green",
    "happy",
    "music",
    "paper",
    "river",
    "stone",
    "table",
    "chair",
    "cloud",
    "light",
    "night",
    "mouse",
    "horse",
    "train",
    "plant",
    "queen",
    "smile",
    "sugar",
    "tiger",
    "uncle",
    "value",
    "wheel",
    "youth",
    "zebra",
    "garden",
    "winter",
    "summer",
    "orange",
    "purple",
    "yellow",
    "friend",
    "school",
    "window",
    "bridge",
    "silver",
    "dragon",
    "castle",
    "forest",
    "island",
    "rocket",
]
NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ivy", "Jack", "Kate", "Leo", "Mia", "Noah",
         "Olivia", "Paul", "Rosa", "Sam", "Tom", "Zoe", "Lucy", "Max", "Nina", "Oscar", "Peter", "Ruth"]  # fmt: skip


def pairs(table: str) -> list[tuple[str, ...]]:
    """The entries of a table of words: the last word is the value."""
    entries = [entry.strip() for line in table.strip().splitlines() for entry in line.split("|")]
    return [tuple(entry.rsplit(" ", 1)) for entry in entries if entry]


def rows(table: str) -> list[tuple[str, ...]]:
    """The rows of a table with one row a line."""
    return [tuple(line.split("|")) for line in table.strip().splitlines()]


def words(table: str) -> list[tuple[str, ...]]:
    """The entries of a table of words, all words apart."""
    return [tuple(entry.split()) for line in table.strip().splitlines() for entry in line.split("|") if entry]
