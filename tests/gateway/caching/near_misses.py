"""Pairs of questions that look alike and must not share an answer, by what tells them apart, and true paraphrases."""

from __future__ import annotations


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((a.strip(), b.strip()) for a, b in (line.split("|") for line in text.strip().splitlines()))


NEAR_MISSES = {
    "negation": _pairs(
        """
Is it safe to take ibuprofen during pregnancy? | Is it unsafe to take ibuprofen during pregnancy?
Which foods should I eat with gout? | Which foods should I not eat with gout?
How do I make bread with yeast? | How do I make bread without yeast?
Why do cats like water? | Why don't cats like water?
Can I file my taxes late? | Can't I file my taxes late?
Is it legal to record a phone call in Texas? | Is it illegal to record a phone call in Texas?
How can I make my code thread-safe? | Why is my code not thread-safe?
What happens if I pay my credit card bill? | What happens if I never pay my credit card bill?
Are tomatoes allowed on a keto diet? | Are tomatoes not allowed on a keto diet?
What are the advantages of remote work? | What are the disadvantages of remote work?
Does coffee dehydrate you? | Does coffee not dehydrate you?
Which animals can see in the dark? | Which animals cannot see in the dark?
How do I enable two-factor authentication? | How do I disable two-factor authentication?
What is the cheapest way to ship a parcel abroad? | What is the most expensive way to ship a parcel abroad?
How do I increase my heart rate? | How do I decrease my heart rate?
What should I do before an earthquake? | What should I do after an earthquake?
Which exercises are good for the knees? | Which exercises are bad for the knees?
What are the best universities for law? | What are the worst universities for law?
How do I install a printer driver? | How do I uninstall a printer driver?
Why is my landlord responsible for repairs? | Why is my landlord irresponsible about repairs?
Is a tomato officially a fruit? | Is a tomato unofficially a fruit?
How is hyperthyroidism treated? | How is hypothyroidism treated?
What are reversible reactions? | What are irreversible reactions?
Who is eligible for a student loan? | Who is ineligible for a student loan?
How can I gain weight in a healthy way? | How can I lose weight in a healthy way?
Is sharing a password permitted? | Is sharing a password not permitted?
What did he do to get hired? | What did he do to get fired?
How do I encrypt a folder? | How do I decrypt a folder?
"""
    ),
    "number": _pairs(
        """
What is 15 percent of 240? | What is 25 percent of 240?
How do I boil an egg for 6 minutes? | How do I boil an egg for 9 minutes?
List 5 facts about whales | List 10 facts about whales
What is the square root of 144? | What is the square root of 169?
How many calories are in two slices of bread? | How many calories are in three slices of bread?
Which phone is best under 300 dollars? | Which phone is best under 500 dollars?
What does HTTP status 401 mean? | What does HTTP status 403 mean?
How do I upgrade from Python 3.8 to 3.12? | How do I upgrade from Python 3.8 to 3.11?
What is chapter 4 about? | What is chapter 7 about?
Can a 12 year old open a bank account? | Can a 16 year old open a bank account?
How much is 1,000 dollars invested at 5% after ten years? | How much is 10,000 dollars invested at 5% after ten years?
What is the third law of thermodynamics? | What is the second law of thermodynamics?
Who won the 1998 world cup? | Who won the 2002 world cup?
What does article 8 of the treaty say? | What does article 9 of the treaty say?
How tall is the average 5 year old? | How tall is the average 8 year old?
Is 97 a prime number? | Is 91 a prime number?
How do I walk 10,000 steps a day? | How do I walk 5,000 steps a day?
What can I cook for four people? | What can I cook for forty people?
How long does a 60 kWh battery take to charge? | How long does an 80 kWh battery take to charge?
What is the probability of rolling a 6 twice? | What is the probability of rolling a 6 three times?
Which port does IMAP use, 143 or 993? | Which port does IMAP use, 143 or 995?
How do I set the font size to 12? | How do I set the font size to 14?
Convert 30 to binary | Convert 13 to binary
What is the 5th amendment? | What is the 4th amendment?
How much rent can I afford on a salary of 40k? | How much rent can I afford on a salary of 60k?
How do I run a 5k? | How do I run a 10k?
What is the RTX 4070 good for? | What is the RTX 4090 good for?
What is 1/3 of 90? | What is 1/2 of 90?
"""
    ),
    "unit": _pairs(
        """
How far is 10 miles? | How far is 10 kilometres?
How hot is 40 degrees Celsius? | How hot is 40 degrees Fahrenheit?
How many grams are in a cup of flour? | How many ounces are in a cup of flour?
Is 200 dollars a good price for a used bike? | Is 200 euros a good price for a used bike?
How long is 90 minutes of jogging in steps? | How long is 90 seconds of jogging in steps?
How much does 5 litres of water weigh? | How much does 5 gallons of water weigh?
How many hours are in a year? | How many days are in a year?
How do I lose 5 kg? | How do I lose 5 lb?
Is 500 MB enough for a week of travel? | Is 500 GB enough for a week of travel?
What is the moon's distance in kilometres? | What is the moon's distance in miles?
How tall is the tower in feet? | How tall is the tower in metres?
Is 2 mg of melatonin too much? | Is 2 grams of melatonin too much?
How long does it take to fly 3000 km? | How long does it take to fly 3000 miles?
What can I buy for 100 yen? | What can I buy for 100 yuan?
How do I convert inches to centimetres? | How do I convert inches to millimetres?
Can I drive at 60 mph here? | Can I drive at 60 kmh here?
How many bytes are in a kilobyte? | How many bits are in a kilobyte?
How bright is a 60 watt lamp? | How bright is a 60 volt lamp?
How much is 3 tablespoons of butter? | How much is 3 teaspoons of butter?
What is a salary of 50 per hour? | What is a salary of 50 per day?
How do I sleep 8 hours? | How do I sleep 8 days?
How many weeks does a visa take? | How many months does a visa take?
What is 5 ft 10? | What is 5 m 10?
How long is a sprint of 2 weeks? | How long is a sprint of 2 months?
Is 30 psi right for my tyres? | Is 30 bar right for my tyres?
How many pints are in this barrel? | How many gallons are in this barrel?
How big is 10 acres? | How big is 10 hectares?
What is £20 worth? | What is $20 worth?
"""
    ),
    "entity": _pairs(
        """
How do I sort a list in Python? | How do I sort a list in Java?
How often should I feed a puppy? | How often should I feed a kitten?
What is the boiling point of ethanol? | What is the boiling point of methanol?
How do I cook a chicken breast? | How do I cook a turkey breast?
What are the symptoms of measles? | What are the symptoms of mumps?
How do I remove a wine stain? | How do I remove a blood stain?
Which vitamins are in an orange? | Which vitamins are in a banana?
How do I grow tomatoes on a balcony? | How do I grow cucumbers on a balcony?
How do I connect to mysql from node? | How do I connect to postgres from node?
What is the density of copper? | What is the density of iron?
How do I play the guitar? | How do I play the violin?
What do bees eat? | What do wasps eat?
How does a diesel engine work? | How does a petrol engine work?
How do I clean a leather sofa? | How do I clean a fabric sofa?
What does the liver do? | What does the kidney do?
What is the main export of brazil? | What is the main export of chile?
How do I reset a router? | How do I reset a modem?
What is the lifespan of a horse? | What is the lifespan of a donkey?
How do I prune an apple tree? | How do I prune a cherry tree?
Which wine goes with salmon? | Which wine goes with beef?
How do I cancel my gym membership? | How do I cancel my phone contract?
How is cheese made? | How is yoghurt made?
What is the role of a prime minister? | What is the role of a president?
How do I write a unit test in rust? | How do I write a unit test in go?
What causes a headache? | What causes a stomach ache?
How do I paint a wooden fence? | How do I paint a metal fence?
What is the speed of sound? | What is the speed of light?
How do I delete a file in linux? | How do I delete a folder in linux?
How deep is the Atlantic Ocean? | How deep is the Indian Ocean?
"""
    ),
    "order": _pairs(
        """
How do I convert euros to dollars? | How do I convert dollars to euros?
How do I get from Paris to London by train? | How do I get from London to Paris by train?
Is a tiger stronger than a lion? | Is a lion stronger than a tiger?
How do I translate English to Spanish? | How do I translate Spanish to English?
Do snakes eat frogs? | Do frogs eat snakes?
Why did Rome attack Carthage? | Why did Carthage attack Rome?
How do I migrate from MySQL to Oracle? | How do I migrate from Oracle to MySQL?
Can a doctor sue a patient? | Can a patient sue a doctor?
How do I convert a PDF to Word? | How do I convert Word to a PDF?
Why is gold more expensive than silver? | Why is silver more expensive than gold?
What does the teacher owe the student? | What does the student owe the teacher?
Should I eat before I exercise? | Should I exercise before I eat?
How many pounds are in a kilogram? | How many kilograms are in a pound?
Does Anna love Peter? | Does Peter love Anna?
How do I cast a string to an int? | How do I cast an int to a string?
Is Java faster than Python? | Is Python faster than Java?
Did France invade Prussia? | Did Prussia invade France?
How do I move photos from my phone to my laptop? | How do I move photos from my laptop to my phone?
What do parents expect from children? | What do children expect from parents?
How do I subtract 5 from 12? | How do I subtract 12 from 5?
Why do dogs chase cats? | Why do cats chase dogs?
How do I convert JSON to XML? | How do I convert XML to JSON?
Is Mercury closer to the Sun than Venus? | Is Venus closer to the Sun than Mercury?
How does stress affect sleep? | How does sleep affect stress?
Can a landlord evict a tenant? | Can a tenant evict a landlord?
Does poverty cause crime? | Does crime cause poverty?
How do I switch from Android to iPhone? | How do I switch from iPhone to Android?
Who lent money to Greece, and why did Germany follow? | Who lent money to Germany, and why did Greece follow?
"""
    ),
    "form": _pairs(
        """
Explain photosynthesis in one sentence | Explain photosynthesis in one paragraph
Explain recursion to a child | Explain recursion to an expert
Write an essay about the French Revolution | Write a poem about the French Revolution
Describe the water cycle as a list | Describe the water cycle as a table
Summarize the plot of Hamlet in 50 words | Summarize the plot of Hamlet in 500 words
Explain inflation briefly | Explain inflation in detail
What are the planets, as JSON? | What are the planets, as CSV?
How do vaccines work? Answer in French | How do vaccines work? Answer in German
Give me a short answer: what is entropy? | Give me a long answer: what is entropy?
What is machine learning? | What is machine learning, in simple terms?
How do I bake a cake? | How do I bake a cake, step by step?
What is a black hole? | What is a black hole? Answer in one word
Write a formal letter to my landlord | Write an informal letter to my landlord
Tell me about Rome | Tell me about Rome in bullet points
Describe a sunset in a haiku | Describe a sunset in a limerick
Explain TCP to a beginner | Explain TCP to an advanced student
Write a function for this in Python | Write a function for this in Rust
List the causes of the First World War | Write an essay on the causes of the First World War
What is DNA? Reply in Spanish | What is DNA? Reply in English
Write a funny toast for a wedding | Write a serious toast for a wedding
How does a car engine work? | How does a car engine work? Draw a diagram
Give three examples of irony | Give a definition of irony
Write a tweet about our new product | Write an email about our new product
Explain gravity like I'm five | Explain gravity like I'm a physicist
What are the rules of chess? | What are the rules of chess, in markdown?
Summarise this topic: climate change | Write a quiz on this topic: climate change
Outline the history of jazz | Tell the history of jazz as a story
Explain blockchain with an analogy | Explain blockchain with a formula
What is the capital gains tax, in two lines? | What is the capital gains tax, in two pages?
"""
    ),
    "date": _pairs(
        """
Is the museum open on Monday? | Is the museum open on Sunday?
What was the population of Spain in 1990? | What was the population of Spain in 2010?
What is the weather like in Rome in March? | What is the weather like in Rome in August?
What happened on 4 July 1776? | What happened on 14 July 1789?
Which shops are open on Christmas? | Which shops are open on Easter?
Which flowers bloom in spring? | Which flowers bloom in autumn?
Who was the king of England in 1500? | Who was the king of England in 1600?
What events are on this Friday? | What events are on this Saturday?
What did people eat in ancient times? | What did people eat in medieval times?
Should I run in the morning? | Should I run in the evening?
When is the tax deadline in April? | When is the tax deadline in October?
What were the hits of the 1980s? | What were the hits of the 1990s?
Does the bus run at 9 am? | Does the bus run at 9 pm?
What should I plant in January? | What should I plant in June?
What was Rome like in 100 BC? | What was Rome like in 100 AD?
What did the president say yesterday? | What did the president say today?
Is the pool open in summer? | Is the pool open in winter?
Which films came out in 2019? | Which films came out in 2021?
What is there to do in Berlin at night? | What is there to do in Berlin in the afternoon?
Who won the election of 1912? | Who won the election of 1916?
Was there a market on Tuesday? | Was there a market on Thursday?
What was fashion like in the 18th century? | What was fashion like in the 19th century?
What is on TV tonight? | What is on TV tomorrow?
Where can I ski in November? | Where can I ski in February?
What were the GDP figures for Q1? | What were the GDP figures for Q3?
How do people celebrate Halloween? | How do people celebrate Thanksgiving?
Can I visit the castle before May 2020? | Can I visit the castle after May 2020?
Is the library closed on weekends? | Is the library closed on weekdays?
"""
    ),
    "name": _pairs(
        """
Who is Marie Curie? | Who is Pierre Curie?
What did Aristotle teach? | What did Plato teach?
How old was Mozart when he died? | How old was Beethoven when he died?
What is Nokia known for? | What is Ericsson known for?
Where was Kafka born? | Where was Camus born?
What are the best places to visit in Lisbon? | What are the best places to visit in Porto?
How do I close my Netflix account? | How do I close my Spotify account?
Which river flows through Vienna? | Which river flows through Prague?
What is the visa policy of Canada? | What is the visa policy of Mexico?
How good is the Toyota Corolla? | How good is the Honda Civic?
What is the plot of Macbeth? | What is the plot of Othello?
Who founded Microsoft? | Who founded Oracle?
What languages are spoken in Kenya? | What languages are spoken in Ghana?
Why did Napoleon lose? | Why did Hannibal lose?
What did Keynes think about debt? | What did Hayek think about debt?
How big is Jupiter? | How big is Saturn?
Is Dr. Miller a good dentist? | Is Dr. Smith a good dentist?
What happened at Waterloo? | What happened at Trafalgar?
How do I deploy to AWS Lambda? | How do I deploy to Azure Functions?
What is the climate of Norway? | What is the climate of Portugal?
Which novels did Tolstoy write? | Which novels did Dostoevsky write?
What is the rank of Stanford University? | What is the rank of Princeton University?
Should I use React for my project? | Should I use Angular for my project?
How did Lincoln die? | How did Garfield die?
What is the currency of Poland? | What is the currency of Hungary?
Who plays Batman in the film? | Who plays Superman in the film?
What are the works of Monet? | What are the works of Manet?
What does John think of Mary's plan? | What does John think of Susan's plan?
What is Washington State famous for? | What is Washington DC famous for?
"""
    ),
    "other": _pairs(
        """
How do I turn on dark mode? | How do I turn off dark mode?
Can I take aspirin with alcohol? | Can I take aspirin after alcohol?
What is the largest lake in Africa? | What is the second largest lake in Africa?
Answer yes or no: is lead toxic? | Is lead toxic?
Will it rain? | Did it rain?
Is the bank at the corner of 5th open on 12/05? | Is the bank at the corner of 5th open on 12/06?
Convert 10 °C to °F | Convert 10 °F to °C
How much is $5 in India? | How much is €5 in India?
What is the CEO of Apple paid? | What is the CFO of Apple paid?
Who killed Hamlet's father? | Who killed Hamlet's mother?
Write a short story about a dog | Write a story about a dog
What is the dose for adults? | What is the dose for children?
What are side effects of metformin? | What are side effects of metoprolol?
How do I open port 80? | How do I open port 8080?
How do I open a bank account? | How do I close a bank account?
What is the tallest building in New York? | What is the tallest building in New Jersey?
How do I say goodbye in Italian? | How do I say goodbye in Swedish?
Is my dog older than your cat? | Is your cat older than my dog?
When did the war start? | When did the war end?
Who defeated whom: Athens beat Sparta? | Who defeated whom: Sparta beat Athens?
Summarize this in uppercase | Summarize this in lowercase
Is it rude to tip? | Is it rude not to tip?
I have chest pain, should I call a doctor? | I have no chest pain, should I call a doctor?
Does the warranty cover water damage? | Does the warranty exclude water damage?
What is the interest on a 15 year mortgage? | What is the interest on a 30 year mortgage?
Can you have too much vitamin D? | Can you have too much vitamin C?
Do I need a visa for a 3 week trip? | Do I need a visa for a 3 month trip?
How do type 1 and type 2 diabetes differ? | How do type 1 and gestational diabetes differ?
Should I use a noun or a verb here? | Should I use an adjective or a verb here?
What does my cat's purring mean? | What does my cat's hissing mean?
Give me three ideas for dinner | Give me three ideas for lunch
Is it cheaper to rent or buy? | Is it cheaper to rent or lease?
Translate this sentence into formal German | Translate this sentence into casual German
How do I reduce my energy bill? | How do I read my energy bill?
Which side of the road do they drive on in Japan? | Which side of the road do they walk on in Japan?
Who is taller, Tom or Ben? | Who is taller, Tom or Max?
Was Pluto a planet? | Is Pluto a planet?
Can men get breast cancer? | Can women get breast cancer?
What should a type 2 diabetic eat? | What should a type 2 diabetic avoid?
Is milk good for you? | Is milk bad for you?
Why did the chicken cross the road? | How did the chicken cross the road?
Do all birds fly? | Do some birds fly?
Must I pay tax on gifts? | Can I pay tax on gifts?
Is he my boss? | Is she my boss?
What did I eat last week? | What did I eat this week?
How do I merge a branch into main? | How do I merge main into a branch?
Is A before B? | Is B before A?
How do I divide 10 by 4? | How do I divide 4 by 10?
What is the probability of A given B? | What is the probability of B given A?
Give feedback to my boss | Get feedback from my boss
How can I borrow money from a friend? | How can I lend money to a friend?
Explain to me how photosynthesis works in 2 sentences | Explain to me how photosynthesis works
Explain DNS | Explain DNS with code
Explain DNS | Explain DNS in depth
Explain DNS | Explain DNS for kids
Explain DNS | Explain DNS using emojis
"""
    ),
}
"""By kind; none of these may be served."""

PARAPHRASES = _pairs(
    """
How do I learn to swim? | How can I learn to swim?
What's the best way to learn French? | What is the best way to learn French?
How can I improve my handwriting? | How do I improve my handwriting?
What is the capital of Australia? | What's the capital of Australia?
How do I get rid of ants in my kitchen? | How can I get rid of ants in my kitchen?
How do I remove rust from a bike chain? | How can I remove rust from a bike chain?
What are some good books about physics? | What are good books about physics?
How can I earn money online? | How do I make money online?
Why is the sky blue? | Why's the sky blue?
How do I become a pilot? | How can I become a pilot?
How do I stop biting my nails? | How can I stop biting my nails?
What is the best way to lose weight? | What's the best way to lose weight?
How can I learn to cook? | How do I learn to cook?
What is the meaning of life? | What's the meaning of life?
How do I increase my vocabulary? | How can I increase my vocabulary?
What are the best ways to save money? | What is the best way to save money?
How can I stop procrastinating? | How do I stop procrastinating?
How do I prepare for a job interview? | How should I prepare for a job interview?
How do I write a good essay? | How can I write a good essay?
How do I purchase a used car? | How do I buy a used car?
What is the difference between a virus and a worm? | What's the difference between a virus and a worm?
How can I learn English quickly? | How do I learn English quickly?
How can I sleep better? | How do I sleep better?
How do I meet new people? | How can I meet new people?
What are the symptoms of the flu? | What are the flu symptoms?
How does the stock market work? | How do stock markets work?
What is the purpose of life? | What's the purpose of life?
How do I quit smoking? | How can I quit smoking?
Why do people yawn? | Why do humans yawn?
How can I make my computer faster? | How do I make my computer faster?
How do I learn programming? | How can I learn programming?
Which is the best laptop for students? | What is the best laptop for students?
How can I be more confident? | How do I become more confident?
What should I do to improve my English? | What can I do to improve my English?
How do you tie a tie? | How do I tie a tie?
How do you make pancakes? | How do I make pancakes?
What are the benefits of drinking green tea? | What are the benefits of green tea?
How can I start a business? | How do I start a business?
How do I forget someone I love? | How can I forget someone I love?
How can I control my anger? | How do I control my anger?
Where can I find cheap flights? | Where do I find cheap flights?
What is quantum computing? | What's quantum computing?
How do I recover a deleted file? | How can I recover a deleted file?
How can we reduce plastic waste? | How do we reduce plastic waste?
How do I overcome the fear of public speaking? | How can I overcome my fear of public speaking?
How can I increase my height? | How do I increase my height?
What is the best way to learn to code? | What is the best way to learn coding?
How can I stay motivated? | How do I stay motivated?
How do I grow my hair faster? | How can I grow my hair faster?
What is your favourite film? | What is your favorite movie?
How can I get more traffic to my website? | How do I get more traffic to my website?
How do I learn machine learning? | How can I learn machine learning?
What is the easiest way to learn the guitar? | What's the easiest way to learn the guitar?
How do I ask a girl out? | How can I ask a girl out?
How can I improve my memory? | How do I improve my memory?
How do I reset my password? | How can I reset my password?
What are some tips for a first date? | What are tips for a first date?
How can I learn to draw? | How do I learn to draw?
What happens after death? | What happens after we die?
How do I deal with stress? | How can I deal with stress?
"""
)
"""Most of these should be served."""
