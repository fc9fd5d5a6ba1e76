"""Seeded chat prompts for the real pair: what the target answers itself, and what its head is measured on.

Twelve families (explain, list, summarise, translate, code, rewrite, sums, stories, ...) filled from word lists. The
held-out prompts come from the same families and are in no training run: they are drawn first, and the
training draw passes over them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

Message = dict[str, str]
Family = Callable[[random.Random], str]

TOPICS = [
    "photosynthesis",
    "gravity",
    "the water cycle",
    "volcanoes",
    "black holes",
    "vaccines",
    "the human heart",
    "magnets",
    "democracy",
    "inflation",
    "supply and demand",
    "the Roman Empire",
    "the French Revolution",
    "the Great Wall of China",
    "the Silk Road",
    "the Renaissance",
    "electric cars",
    "solar panels",
    "wind power",
    "batteries",
    "the internet",
    "machine learning",
    "databases",
    "computer viruses",
    "the stock market",
    "interest rates",
    "tides",
    "earthquakes",
    "rainbows",
    "the seasons",
    "coral reefs",
    "rainforests",
    "deserts",
    "glaciers",
    "the moon",
    "Mars",
    "comets",
    "dinosaurs",
    "whales",
    "bees",
    "ants",
    "migration of birds",
    "sleep",
    "dreams",
    "memory",
    "stress",
    "exercise",
    "vitamins",
    "sugar",
    "bread making",
    "cheese",
    "coffee",
    "tea",
    "chocolate",
    "chess",
    "football",
    "swimming",
    "painting",
    "jazz",
    "opera",
    "poetry",
    "photography",
    "architecture",
    "bridges",
    "trains",
    "airplanes",
    "sailing",
    "printing",
    "paper",
    "glass",
    "steel",
    "plastic",
    "recycling",
    "climate change",
    "clean water",
    "soil",
    "forests",
    "nutrition",
    "the immune system",
    "antibiotics",
    "DNA",
    "evolution",
    "atoms",
    "sound waves",
    "light",
    "lenses",
    "thermometers",
    "clocks",
    "calendars",
    "maps",
    "compasses",
    "languages",
    "alphabets",
    "libraries",
    "museums",
]
TASKS = [
    "learn a new language",
    "save money",
    "sleep better",
    "study for an exam",
    "write a good essay",
    "cook rice",
    "plant a vegetable garden",
    "start running",
    "speak in public",
    "make new friends",
    "clean a kitchen",
    "pack for a trip",
    "train a puppy",
    "learn the guitar",
    "read more books",
    "prepare for a job interview",
    "reduce stress",
    "organise a desk",
    "bake bread",
    "take better photos",
    "manage time",
    "plan a birthday party",
    "remember names",
    "stay healthy in winter",
    "write a letter of complaint",
    "choose a bicycle",
    "teach a child to read",
    "work from home",
    "avoid distractions",
    "give feedback to a colleague",
    "learn to swim",
    "keep a diary",
    "build a bookshelf",
    "care for houseplants",
]
PLACES = [
    "Paris",
    "Tokyo",
    "New York",
    "Cairo",
    "London",
    "Rome",
    "Sydney",
    "Istanbul",
    "Rio de Janeiro",
    "Berlin",
    "Madrid",
    "Nairobi",
    "Mumbai",
    "Toronto",
    "Lisbon",
    "Athens",
    "Vienna",
    "Kyoto",
    "Cape Town",
    "Mexico City",
]
NAMES = [
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Farid",
    "Grace",
    "Henry",
    "Ines",
    "Jack",
    "Kira",
    "Liam",
    "Maya",
    "Noah",
    "Olga",
    "Peter",
    "Rosa",
    "Sam",
    "Tara",
    "Victor",
    "Wendy",
    "Yusuf",
    "Zoe",
    "Lucy",
    "Tom",
    "Maria",
    "Oliver",
    "Sofia",
]
CREATURES = [
    "a lonely robot",
    "a brave mouse",
    "an old fisherman",
    "a curious girl",
    "a lost kitten",
    "a clever fox",
    "a tiny dragon",
    "a tired king",
    "a young inventor",
    "a talking tree",
    "a shy giant",
    "two sisters",
    "a sailor",
    "a wizard's apprentice",
    "a baker",
    "a snowman",
    "a lighthouse keeper",
    "a wise owl",
    "a boy with a kite",
    "a clockmaker",
]
SETTINGS = [
    "in a small village",
    "on a distant planet",
    "at the bottom of the sea",
    "in a dark forest",
    "in a big city",
    "on a farm",
    "in an old castle",
    "during a storm",
    "on a snowy mountain",
    "in a library",
    "on a train",
    "in a desert",
]
PAIRS = [
    ("cats", "dogs"),
    ("tea", "coffee"),
    ("trains", "airplanes"),
    ("summer", "winter"),
    ("books", "films"),
    ("cities", "villages"),
    ("Python", "Java"),
    ("solar power", "wind power"),
    ("fruit", "vegetables"),
    ("lakes", "oceans"),
    ("running", "swimming"),
    ("gold", "silver"),
    ("novels", "poems"),
    ("frogs", "toads"),
    ("mass", "weight"),
    ("weather", "climate"),
    ("bacteria", "viruses"),
    ("speed", "velocity"),
    ("emails", "letters"),
    ("guitars", "violins"),
]
CODE = [
    "reverses a string",
    "checks if a number is prime",
    "computes the factorial of a number",
    "finds the largest number in a list",
    "counts the vowels in a string",
    "sorts a list of numbers",
    "removes duplicates from a list",
    "computes the Fibonacci sequence",
    "checks if a word is a palindrome",
    "converts Celsius to Fahrenheit",
    "counts the words in a sentence",
    "sums the even numbers in a list",
    "finds the greatest common divisor of two numbers",
    "merges two dictionaries",
    "reads a file line by line",
    "computes the average of a list",
    "flattens a nested list",
    "finds the second largest number in a list",
    "counts how often each letter occurs",
    "swaps two variables",
    "prints a multiplication table",
    "generates a random password",
]
SENTENCES = [
    "I would like to order a cup of coffee, please.",
    "The weather is very nice today.",
    "Where is the nearest train station?",
    "My sister works in a hospital.",
    "We are going to the beach tomorrow.",
    "Can you help me with my homework?",
    "The book on the table is mine.",
    "He has lived in this city for ten years.",
    "I am learning to play the piano.",
    "They bought a new house last summer.",
    "She opens the window every morning.",
    "Please close the door when you leave.",
    "The children are playing in the garden.",
    "I forgot my umbrella at home.",
    "This restaurant serves excellent soup.",
]
ROUGH = [
    "me and him was going to the shop but it were closed",
    "i think your report is bad and needs more work",
    "the meeting got moved again because nobody could come",
    "we need the money now so pay the invoice",
    "the product broke after two days and i am very angry",
    "hey can u send me the file asap thanks",
    "she dont like the new plan because its too expensive",
    "the trip was good but the hotel was not so good",
    "i cant come to work today because i am sick",
    "the software is slow and the users are complaining a lot",
]
FACTS = [
    "Bees visit flowers to collect nectar. While they do so, pollen sticks to their bodies and is carried to other flowers. "
    "This helps plants to make seeds and fruit. Without bees many crops would fail.",
    "The printing press was invented in the fifteenth century. It made books cheaper and spread ideas quickly across Europe. "
    "More people learned to read, and scholars could share their work.",
    "Coral reefs grow in warm and shallow seas. They shelter a quarter of all sea animals. Rising temperatures make corals "
    "lose their colour and die. Many countries now protect their reefs.",
    "The city opened a new tram line on Monday. It connects the harbour with the university and takes twenty minutes. "
    "Tickets cost two euros. The mayor hopes that fewer people will drive to work.",
    "Sleep is important for memory. During deep sleep the brain sorts what it learned in the day. People who sleep less than "
    "six hours make more mistakes and fall ill more often.",
    "The desert is hot in the day and cold at night. Few plants grow there, and animals hide under the sand until evening. "
    "Some of them never drink and take all their water from food.",
    "A small company built a cheap water filter from clay and ash. It removes most germs and can be made in any village. "
    "Last year it reached fifty thousand families.",
    "The old library was closed for three years. Now it has a new roof, more desks and a reading room for children. "
    "On the first day more than two thousand visitors came.",
]
GOODS = ["apples", "oranges", "pencils", "books", "marbles", "tickets", "cookies", "stamps", "chairs", "bottles"]


def _explain(rng: random.Random) -> str:
    how = ["Explain {} in simple terms.", "What is {}?", "How does {} work?", "Can you tell me about {}?", "Why is {} important?",
           "Explain {} to a ten-year-old child.", "Write a short paragraph about {}.", "Describe {} in a few sentences."]  # fmt: skip
    return rng.choice(how).format(rng.choice(TOPICS))


def _list(rng: random.Random) -> str:
    count = rng.choice(["three", "four", "five", "5", "six"])
    how = [
        "List {} facts about {}.",
        "Give me {} interesting facts about {}.",
        "Name {} things everyone should know about {}.",
    ]
    return rng.choice(how).format(count, rng.choice(TOPICS))


def _advice(rng: random.Random) -> str:
    how = ["How do I {}?", "Give me some tips on how to {}.", "What is the best way to {}?", "Write step by step instructions: how to {}.",
           "What are five ways to {}?", "I want to {}. Where do I start?"]  # fmt: skip
    return rng.choice(how).format(rng.choice(TASKS))


def _story(rng: random.Random) -> str:
    how = ["Write a short story about {} {}.", "Tell me a story about {} {}.", "Write the beginning of a fairy tale about {} {}.",
           "Write a funny story about {} {}."]  # fmt: skip
    return rng.choice(how).format(rng.choice(CREATURES), rng.choice(SETTINGS))


def _poem(rng: random.Random) -> str:
    return f"Write a {rng.choice(['short poem', 'poem', 'haiku', 'song'])} about {rng.choice(TOPICS)}."


def _code(rng: random.Random) -> str:
    how = [
        "Write a Python function that {}.",
        "Write a Python program that {} and explain it.",
        "Show me Python code that {}.",
    ]
    return rng.choice(how).format(rng.choice(CODE))


def _translate(rng: random.Random) -> str:
    language = rng.choice(["French", "Spanish", "German", "Italian"])
    return f'Translate into {language} and explain the words: "{rng.choice(SENTENCES)}"'


def _rewrite(rng: random.Random) -> str:
    how = ["Rewrite this politely: {}", "Correct the grammar of this sentence and explain the changes: {}", "Make this more formal: {}",
           "Write a polite email that says: {}"]  # fmt: skip
    return rng.choice(how).format(rng.choice(ROUGH))


def _summary(rng: random.Random) -> str:
    how = ["Summarise this text in one sentence and then explain why it matters: {}", "What are the main points of this text? {}",
           "Give this text a title and write a summary: {}"]  # fmt: skip
    return rng.choice(how).format(rng.choice(FACTS))


def _sum(rng: random.Random) -> str:
    a, b = rng.sample(NAMES, 2)
    goods, many, few = rng.choice(GOODS), rng.randint(12, 40), rng.randint(2, 11)
    how = [
        f"{a} has {many} {goods} and gives {few} to {b}. How many {goods} does {a} have left? Explain step by step.",
        f"{a} buys {few} boxes with {many} {goods} each. How many {goods} is that? Show your work.",
        f"{a} has {many} {goods} and {b} has {few} more than {a}. How many do they have together? Explain.",
    ]
    return rng.choice(how)


def _compare(rng: random.Random) -> str:
    one, other = rng.choice(PAIRS)
    how = [
        "What is the difference between {} and {}?",
        "Compare {} and {}.",
        "What are the advantages of {} over {}?",
    ]
    return rng.choice(how).format(one, other)


def _travel(rng: random.Random) -> str:
    how = ["I have one day in {}. What should I see?", "Plan a weekend in {}.", "What is {} known for?", "Describe {} to a first-time visitor.",
           "What food should I try in {}?"]  # fmt: skip
    return rng.choice(how).format(rng.choice(PLACES))


FAMILIES: dict[str, tuple[Family, float]] = {
    "explain": (_explain, 2.4),
    "list": (_list, 1.2),
    "advice": (_advice, 1.2),
    "story": (_story, 1.2),
    "poem": (_poem, 0.6),
    "code": (_code, 0.8),
    "translate": (_translate, 0.6),
    "rewrite": (_rewrite, 0.4),
    "summary": (_summary, 0.25),
    "sum": (_sum, 1.0),
    "compare": (_compare, 0.5),
    "travel": (_travel, 0.8),
}
HELD_OUT = 160
SEED = 20


def _distinct(seed: int, count: int, taken: set[str]) -> list[str]:
    rng = random.Random(seed)
    families = [family for family, _ in FAMILIES.values()]
    weights = [weight for _, weight in FAMILIES.values()]
    found: list[str] = []
    tries = 0
    while len(found) < count:
        tries += 1
        if tries > 4 * count + 100:
            raise ValueError(f"the word lists give no {count} distinct prompts: ask for fewer")
        prompt = rng.choices(families, weights)[0](rng)
        if prompt not in taken:
            taken.add(prompt)
            found.append(prompt)
    return found


def held_out_prompts(count: int = HELD_OUT) -> list[str]:
    """The first ``count`` prompts that no training run sees (at most ``HELD_OUT``)."""
    return _distinct(SEED, HELD_OUT, set())[:count]


def training_prompts(count: int) -> list[str]:
    """``count`` distinct prompts, none of them held out; a longer draw begins with the shorter one."""
    return _distinct(SEED + 1, count, set(held_out_prompts()))


def messages(prompt: str) -> list[Message]:
    """The prompt as the chat that the template renders (it adds the model's own system message)."""
    return [{"role": "user", "content": prompt}]
