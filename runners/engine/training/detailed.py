"""Requests of several sentences with several wishes at once, the way people brief an assistant for a longer answer.

Standard library only; every choice comes from the given `random.Random` and the lists of `data/topics.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from runners.engine.training.passages import DAYS, MONTHS, NAMES, PASSAGES, TOWNS

Topics = dict[str, list[str]]

_CLASSES = (
    ("Playlist", "songs of a music player", "add(song)|remove(song)|shuffle()|total_minutes()"),
    ("Thermometer", "readings of a weather station", "record(value)|average()|highest()|reset()"),
    ("Account", "a savings account", "deposit(amount)|withdraw(amount)|balance()|history()"),
    ("Recipe", "a recipe with ingredients", "add_ingredient(name, grams)|scale(factor)|steps()|shopping_list()"),
    ("Elevator", "an elevator in a tower", "call(floor)|move()|doors()|position()"),
    ("Ticket", "a cinema ticket", "price()|seat()|upgrade()|cancel()"),
    ("Garden", "plants in a garden", "plant(name)|water(name)|harvest()|report()"),
    ("Queue", "people who wait at a counter", "enter(name)|serve()|waiting()|longest_wait()"),
    ("Timer", "a kitchen timer", "start(seconds)|pause()|resume()|remaining()"),
    ("Diary", "dated notes", "write(date, text)|read(date)|search(word)|export()"),
    ("Matrix", "a small matrix of numbers", "get(row, column)|transpose()|multiply(other)|determinant()"),
    ("Robot", "a robot on a grid", "turn_left()|forward(steps)|position()|obstacle_ahead()"),
    ("Hotel", "rooms of a hotel", "book(guest, nights)|cancel(guest)|free_rooms()|income()"),
    ("Quiz", "questions with answers", "ask()|answer(text)|score()|restart()"),
    ("Parser", "lines of a log file", "feed(line)|errors()|summary()|clear()"),
)
_CODE_WISHES = (
    "Use type hints.|Include docstrings.|Raise a ValueError for bad input.|Show a short example of how to use it.|"
    "Keep the code as short as possible.|Add comments.|Also write two tests.|Use a dataclass.|Explain your choices."
).split("|")
_PROJECTS = (
    "a small website for a bakery|a science corner in a classroom|a school concert|a two-week bicycle tour|"
    "moving an office to another floor|learning to swim as an adult|a neighborhood film evening|"
    "a podcast about local history|renovating a bathroom|a charity dinner|a reading challenge for a class|"
    "training for a first five-kilometer run|opening a food truck|a photo exhibition|digitizing old family pictures|"
    "an after-school coding club|a weekly newsletter|building a treehouse|a language exchange evening|a repair cafe"
).split("|")
_CRITERIA = "cost,time,safety,comfort,effort,health,the environment,fun,noise,maintenance,learning,quality".split(",")
_ENDINGS = (
    "a happy ending|a surprise at the end|an open ending|a lesson at the end|a sad but hopeful ending|a funny last line"
).split("|")
_OBJECTS = "a red umbrella,a broken clock,an old photograph,a silver key,a jar of honey,a paper boat,a torn map".split(
    ","
)
_TONES = "friendly,formal,apologetic,enthusiastic,firm but polite,cheerful,short and clear,warm".split(",")
_DETAILS = (
    "It happened on {day}.|I need an answer before {day}.|My name is {name}.|The reference number is {n}.|"
    "We have known each other for {k} years.|Suggest {day} or {day2} as a date.|Mention that I will be away in {month}.|"
    "Offer to call on {day} morning.|The address is {n} Mill Road in {town}.|Say thank you at the end.|"
    "Ask whether {name} can come, too.|Attach the list with {k} items."
).split("|")
_ANGLES = (
    "what it is,how it works,where it is used,why it matters,its history,its limits,a common misunderstanding,"
    "a simple example,its advantages,its risks,how to learn more"
).split(",")


def _some(r: Random, values: Sequence[str], low: int, high: int) -> list[str]:
    return r.sample(values, r.randint(low, high))


def _listed(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} and {values[-1]}"


def _class(r: Random, topics: Topics) -> str:
    name, what, methods = r.choice(_CLASSES)
    language = "Python" if r.random() < 0.7 else r.choice(["Java", "JavaScript", "TypeScript", "C++", "Go", "Rust"])
    chosen = _some(r, methods.split("|"), 2, 4)
    wishes = " ".join(_some(r, _CODE_WISHES, 0, 2))
    return f"Write a {language} class {name} for {what}. It should offer {_listed(chosen)}. {wishes}".strip()


def _program(r: Random, topics: Topics) -> str:
    first, second = r.sample(topics["code_task"], 2)
    return f"Write a Python module with two functions: one to {first}, another to {second}. {r.choice(_CODE_WISHES)}"


def _email(r: Random, topics: Topics) -> str:
    details = " ".join(_some(r, _DETAILS, 1, 3))
    day, other = r.sample(DAYS, 2)
    for slot, value in (
        ("{day2}", other),
        ("{day}", day),
        ("{name}", r.choice(NAMES)),
        ("{month}", r.choice(MONTHS)),
        ("{town}", r.choice(TOWNS)),
        ("{n}", str(r.randint(10, 999))),
        ("{k}", str(r.randint(2, 12))),
    ):
        details = details.replace(slot, value)
    return f"Write an email {r.choice(topics['email_task'])}. {details} The tone should be {r.choice(_TONES)}."


def _story(r: Random, topics: Topics) -> str:
    return (
        f"Write a story of {r.choice(['five', 'six', 'eight', 'ten', 'about fifteen'])} sentences about "
        f"{r.choice(topics['character'])} {r.choice(topics['setting'])}. It should mention {r.choice(_OBJECTS)}, be about "
        f"{r.choice(topics['theme'])} and have {r.choice(_ENDINGS)}."
    )


def _comparison(r: Random, topics: Topics) -> str:
    first, second = r.choice(topics["pair"]).split(" | ")
    return (
        f"Compare {first} and {second}. {r.choice(['Use a table.', 'Write one paragraph for each.', 'Use bullet points.'])} "
        f"{r.choice(['Then say when each is the better choice.', 'Give one example of each.', 'Close with a short summary.'])}"
    )


def _decision(r: Random, topics: Topics) -> str:
    first, second = r.sample(topics[r.choice(["hobby", "sport", "product", "city", "profession"])], 2)
    return (
        f"I cannot decide between {first} and {second}. Compare them by {_listed(_some(r, _CRITERIA, 2, 4))}, and tell me "
        f"what you would advise {r.choice(topics['audience'])}."
    )


def _plan(r: Random, topics: Topics) -> str:
    return (
        f"Make a plan for {r.choice(_PROJECTS)}. {r.choice(['Split it into', 'It should have'])} {r.randint(3, 6)} "
        f"{r.choice(['steps', 'stages', 'weeks', 'parts'])}. For each, name "
        f"{_listed(_some(r, ['the goal', 'what is needed', 'how long it takes', 'what it costs', 'what can go wrong'], 2, 3))}."
    )


def _explanation(r: Random, topics: Topics) -> str:
    subject = r.choice(
        topics[r.choice(["science", "technology", "history", "math", "algorithm", "business", "health", "law"])]
    )
    return (
        f"Explain {subject} to {r.choice(topics['audience'])}. Cover {_listed(_some(r, _ANGLES, 2, 3))}. "
        f"{r.choice(['Use headings.', 'Number the points.', 'Write about 150 words.', 'Avoid technical terms.', ''])}"
    ).strip()


def _questions(r: Random, topics: Topics) -> str:
    subject = r.choice(
        topics[r.choice(["concept_code", "grammar", "finance", "environment", "music", "culture", "home"])]
    )
    first, second = r.sample(
        [
            "How does one get started?",
            "What goes wrong most often?",
            "Why do people care about it?",
            "Is there a simple rule to remember?",
            "What should I read or try first?",
            "How long does it take to learn?",
        ],
        2,
    )
    return f"I have two questions about {subject}. {first} {second}"


def _long_passage(r: Random, topics: Topics) -> str:
    parts = [make(r) for make in r.sample(PASSAGES, 2)]
    task = r.choice(
        [
            f"Summarize the two texts in {r.randint(2, 4)} sentences.",
            "Give each of the two texts a title and one sentence.",
            "What do these two texts tell us? List the facts.",
            "Condense everything below to one paragraph.",
            "Write down the three most important facts.",
        ]
    )
    return f"{task}\n\n{parts[0]}\n\n{parts[1]}"


def _multi_step(r: Random, topics: Topics) -> str:
    a, b = r.sample(NAMES, 2)
    hours, wage, rent, k = r.randint(4, 9), r.randint(11, 29), r.randint(2, 9) * 50, r.randint(2, 6)
    distance, litres = r.randint(3, 20) * 40, r.randint(4, 9)
    return r.choice(
        [
            f"{a} works {hours} hours a day for {k} days and gets {wage} dollars an hour. From this {a} pays {rent // 10} dollars "
            f"for the bus and saves half of the rest. How much is saved?",
            f"A car needs {litres} liters for 100 kilometers. {a} drives {distance} kilometers, and a liter costs {k} dollars. "
            f"{b} pays a quarter of the fuel. What does each of them pay?",
            f"A pool is {k + 6} meters long, {k + 1} meters wide and 2 meters deep. It is filled at {k * 10} cubic meters an hour. "
            f"How much water fits in, and how long does filling take?",
            f"{a} has read {k * 25} pages of a book with {k * 25 + hours * 12} pages. From now on {a} reads 12 pages a day. When is "
            f"{a} done, and what part of the book was read at the start?",
            f"In a class of {k * 6} children, one third play an instrument, and half of those also sing. How many children play "
            f"but do not sing?",
            f"{a} mixes {k} cups of juice with {k * 3} cups of water. {b} wants {hours * 4} cups of the same drink. How much juice "
            f"and how much water does {b} need?",
        ]
    ) + r.choice([" Solve it step by step.", " Show every step.", " Write down the equation first.", ""])


DETAILED: tuple[tuple[Callable[[Random, Topics], str], float], ...] = (
    (_class, 4),
    (_program, 2),
    (_email, 4),
    (_story, 4),
    (_comparison, 2),
    (_decision, 3),
    (_plan, 4),
    (_explanation, 5),
    (_questions, 2),
    (_long_passage, 4),
    (_multi_step, 3),
)


def detailed(r: Random, topics: Topics) -> str:
    """One request; `topics` are the lists of `data/topics.txt` by slot."""
    (make,) = r.choices([make for make, _ in DETAILED], [weight for _, weight in DETAILED])
    return make(r, topics)
