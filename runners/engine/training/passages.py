"""Requests that carry their own material: small made-up passages, tables and lists, and what people ask about them.

A draft model meets much copied text in such answers (names, figures, phrases of the request), so they get their own
generator. Standard library only; every choice comes from the given `random.Random`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

NAMES = (
    "Anna Ben Carla David Elena Farid Grace Hugo Ines Jonas Kofi Lena Marco Nadia Oscar Priya Quinn Rosa Samir Tara Umar Vera "
    "Walter Ximena Yusuf Zoe Mateo Hannah Ravi Sofia Tom Ingrid Pablo Mei Kwame Astrid Dmitri Leila Noah Freya"
).split()
TOWNS = (
    "Millbrook Harborview Eastfield Oakdale Riverton Stonebridge Lakeside Fairmont Greenhill Westport Ashford Kingsbury "
    "Northgate Pinewood Silverton Brookhaven"
).split()
MONTHS = "January February March April May June July August September October November December".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
GOODS = (
    "lamp,chair,kettle,backpack,keyboard,monitor,toaster,blender,jacket,tent,bicycle,camera,printer,desk,blanket,radio,"
    "vacuum cleaner,suitcase,coffee machine,headset"
).split(",")
PLACES = "library,swimming pool,town hall,bakery,museum,train station,hospital,primary school,theater,farmers' market,bridge,park".split(
    ","
)
TEAMS = "design,sales,support,finance,marketing,research,logistics,training,security,planning".split(",")
LANGUAGES = "French,Spanish,German,Italian,Portuguese,Dutch,Polish".split(",")


def _news(r: Random) -> str:
    town, place, name = r.choice(TOWNS), r.choice(PLACES), r.choice(NAMES)
    opening = r.choice(
        [
            f"The {place} in {town} will be closed for {r.randint(2, 14)} weeks starting on {r.choice(MONTHS)} {r.randint(1, 28)}.",
            f"A new {place} opened in {town} on {r.choice(DAYS)} after {r.randint(2, 9)} years of planning.",
            f"More than {r.randint(2, 90) * 100} people visited the {place} in {town} last {r.choice(['week', 'month', 'weekend'])}.",
            f"The city council of {town} voted on {r.choice(DAYS)} to repair the old {place}.",
            f"Heavy rain damaged the roof of the {place} in {town} on {r.choice(DAYS)} night.",
        ]
    )
    middle = r.sample(
        [
            f"The work costs about {r.randint(2, 95) * 10},000 dollars and is paid by the city.",
            f"Mayor {name} said that the project shows how much the town cares about its families.",
            "Some residents worry about noise and traffic.",
            f"A group of {r.randint(5, 60)} volunteers helped to clean the rooms and to paint the walls.",
            f"Visitors can use the side entrance on {r.choice(['Mill', 'Church', 'Park', 'Market', 'Station'])} Street.",
            "Local shops expect more customers in the coming months.",
            f"Entry is free for children under {r.randint(6, 14)}.",
        ],
        r.randint(2, 3),
    )
    end = r.choice(
        [
            "The next public meeting takes place in two weeks.",
            "The council will publish the full report online.",
            "A party with music and food is planned for the last weekend of the month.",
            "Nobody was hurt.",
            "The staff hope that the changes will last for many years.",
        ]
    )
    return " ".join([opening, *middle, end])


def _review(r: Random) -> str:
    thing = r.choice(GOODS)
    good = [
        f"The {thing} arrived in only {r.randint(1, 4)} days and was packed well.",
        "It looks even better than in the pictures.",
        f"I have used it every day for {r.randint(2, 11)} weeks and it still works like new.",
        "The instructions were short and clear.",
        "My whole family likes it.",
        f"For {r.randint(15, 240)} dollars it is a very good deal.",
    ]
    bad = [
        f"The {thing} stopped working after {r.randint(2, 20)} days.",
        "Customer service never answered my messages.",
        "The color is not the one that I ordered.",
        f"It is much too loud and too expensive at {r.randint(40, 400)} dollars.",
        "One part was missing, so I had to build my own.",
        "The box was open and the cable was broken.",
    ]
    mood = r.random()
    if mood < 0.4:
        chosen = r.sample(good, 3)
    elif mood < 0.8:
        chosen = r.sample(bad, 3)
    else:
        chosen = [r.choice(good), "However, there are some problems.", r.choice(bad)]
    return " ".join(chosen)


def _bio(r: Random) -> str:
    name, job = (
        r.choice(NAMES),
        r.choice("nurse,teacher,baker,engineer,gardener,pilot,painter,journalist,chemist,carpenter".split(",")),
    )
    parts = [
        f"{name} is a {r.randint(22, 67)}-year-old {job} from {r.choice(TOWNS)}.",
        r.choice(
            [
                f"{name} has worked in the same place for {r.randint(2, 25)} years.",
                f"Before that, {name} lived abroad for {r.randint(2, 8)} years and learned {r.choice(LANGUAGES)}.",
                f"{name} shares a small house with {r.choice(['two cats', 'an old dog', 'three children', 'a parrot', 'a brother'])}.",
            ]
        ),
        r.choice(
            [
                "On weekends the favorite activity is long walks in the hills.",
                f"Every {r.choice(DAYS)} there is choir practice in the evening.",
                f"Last {r.choice(['spring', 'summer', 'autumn', 'winter'])} a long dream came true: a trip around the lake by bicycle.",
                f"The next goal is to run {r.randint(5, 42)} kilometers without a break.",
            ]
        ),
    ]
    return " ".join(parts)


def _notes(r: Random) -> str:
    a, b, c = r.sample(NAMES, 3)
    team = r.choice(TEAMS)
    lines = [
        f"Meeting of the {team} team, {r.choice(DAYS)}, {r.randint(8, 16)}:{r.choice(['00', '15', '30', '45'])}.",
        f"{a} reported that {r.choice(['costs', 'orders', 'complaints', 'visits'])} went {r.choice(['up', 'down'])} by {r.randint(2, 38)} percent.",
        f"{b} will {r.choice(['call the supplier', 'update the schedule', 'write a short guide', 'book a larger room'])} before {r.choice(DAYS)}.",
        f"{c} asked for {r.choice(['more time', 'a second screen', 'help with the test', 'a new contract', 'clear priorities'])}.",
        f"The team agreed to {r.choice(['meet twice a week', 'move the launch to ' + r.choice(MONTHS), 'hire one more person', 'stop the old service'])}.",
    ]
    return " ".join(lines)


def _order(r: Random) -> str:
    thing = r.choice(GOODS)
    return (
        f"{r.choice(['Hello', 'Dear team', 'Hi'])}, my name is {r.choice(NAMES)} and my order number is {r.randint(10000, 99999)}. "
        f"I bought a {thing} on {r.choice(MONTHS)} {r.randint(1, 28)} for {r.randint(12, 480)} dollars. "
        + r.choice(
            [
                f"It arrived with a broken {r.choice(['handle', 'screen', 'cable', 'lid', 'wheel'])}, so I would like a new one.",
                "It has not arrived yet. Could you tell me where it is?",
                "I would like to send it back, because I ordered the wrong size.",
                "I was charged twice. Please return the second payment.",
                f"I am very happy with it and want to order {r.randint(2, 6)} more. Is there a discount?",
            ]
        )
    )


def _weather(r: Random) -> str:
    low = r.randint(-8, 20)
    return (
        f"On {r.choice(DAYS)} the morning in {r.choice(TOWNS)} starts with {r.choice(['fog', 'sunshine', 'light rain', 'snow', 'strong wind'])}. "
        f"Temperatures lie between {low} and {low + r.randint(3, 12)} degrees. In the afternoon there is a {r.randint(1, 9) * 10} percent "
        f"chance of {r.choice(['showers', 'thunderstorms', 'clear skies', 'hail'])}. "
        + r.choice(
            [
                "The night stays dry.",
                "Drivers should be careful.",
                "The weekend will be warmer.",
                "More clouds arrive at night.",
            ]
        )
    )


def _story(r: Random) -> str:
    a, b = r.sample(NAMES, 2)
    thing = r.choice("key,map,letter,coin,compass,notebook,whistle,lantern".split(","))
    return " ".join(
        [
            f"{a} found a small {thing} under the {r.choice(['stairs', 'old tree', 'bench', 'bridge', 'carpet'])}.",
            f"It was {r.choice(['cold', 'heavy', 'covered with dust', 'warm to the touch', 'wrapped in blue paper'])}.",
            f"{b} {r.choice(['laughed and said that it was worthless', 'wanted to throw it away', 'knew at once what it was', 'turned pale'])}.",
            r.choice(
                [
                    "That evening they walked back to the place with a light.",
                    f"They decided to keep it a secret until {r.choice(DAYS)}.",
                    "Suddenly there was a knock at the door.",
                    "The next morning it was gone.",
                ]
            ),
        ]
    )


PASSAGES: tuple[Callable[[Random], str], ...] = (_news, _review, _bio, _notes, _order, _weather, _story)

ON_PASSAGE = (
    "Summarize the following text in one sentence.|Summarize this text.|Summarize this for me in a few words:|"
    "What is the main point of this text?|Give this text a title.|Write a headline for this text.|"
    "List the key facts of the following text as bullet points.|Rewrite this text in simpler words.|"
    "Rewrite the following text so that it sounds more formal.|Rewrite this as a short message to a friend.|"
    "Translate the following text into {language}.|Which names and places does this text mention?|"
    "Which numbers does this text mention, and what do they mean?|Write three questions about this text.|"
    "Write two questions about the text and answer them.|Continue this text.|What could happen next?|"
    "Is the tone of this text positive, negative or neutral?|Extract the names, dates and numbers as JSON.|"
    "Turn this text into a table with two columns.|Find the most important sentence in this text.|"
    "Explain this text to a child.|Shorten this text to half its length.|Write a reply to this text.|"
    "Write this text from another person's point of view.|Make this text more cheerful.|"
    "What is missing in this text?|Does this text contain an opinion? Explain."
).split("|")


def on_passage(r: Random) -> str:
    """A request about a made-up passage, before or after it."""
    passage = r.choice(PASSAGES)(r)
    task = r.choice(ON_PASSAGE).replace("{language}", r.choice(LANGUAGES))
    layout = r.random()
    if layout < 0.6:
        return f"{task}\n\n{passage}"
    if layout < 0.8:
        return f"{passage}\n\n{task}"
    return f'{task}\n\nText: "{passage}"'


def classify(r: Random) -> str:
    """A request to sort one or several texts into named classes."""
    labels, make = r.choice(
        [
            ("positive, negative or mixed", _review),
            ("complaint, question or praise", _order),
            ("news, weather or story", r.choice((_news, _weather, _story))),
            ("urgent or not urgent", r.choice((_order, _notes))),
        ]
    )
    if r.random() < 0.5:
        return f"Classify this text as {labels}. {r.choice(['', 'Give one reason. ', 'Answer with one word. '])}\n\n{make(r)}".replace(
            " \n", "\n"
        )
    items = "\n".join(f"{i}. {make(r).split('. ')[0].rstrip('.')}." for i in range(1, r.randint(3, 4)))
    return f"For each of these texts, say whether it is {labels}.\n{items}"


def _rows(r: Random) -> tuple[str, list[str], list[list[str]]]:
    kind = r.randrange(4)
    if kind == 0:
        return (
            "products",
            ["product", "price", "stock"],
            [[g, str(r.randint(9, 300)), str(r.randint(0, 80))] for g in r.sample(GOODS, r.randint(3, 5))],
        )
    if kind == 1:
        return (
            "students",
            ["name", "age", "grade"],
            [[n, str(r.randint(11, 18)), r.choice("ABCD")] for n in r.sample(NAMES, r.randint(3, 5))],
        )
    if kind == 2:
        return (
            "teams",
            ["team", "members", "budget"],
            [[t, str(r.randint(2, 30)), str(r.randint(5, 90) * 1000)] for t in r.sample(TEAMS, r.randint(3, 5))],
        )
    return (
        "towns",
        ["town", "population", "founded"],
        [[t, str(r.randint(2, 400) * 500), str(r.randint(1100, 1950))] for t in r.sample(TOWNS, r.randint(3, 5))],
    )


def on_table(r: Random) -> str:
    """A request about a small table: convert it, sort it, read it."""
    what, head, rows = _rows(r)
    form = r.randrange(4)
    if form == 0:
        data = "\n".join(",".join(row) for row in [head, *rows])
    elif form == 1:
        data = "\n".join(
            [
                "| " + " | ".join(head) + " |",
                "|" + " --- |" * len(head),
                *("| " + " | ".join(row) + " |" for row in rows),
            ]
        )
    elif form == 2:
        data = json.dumps([dict(zip(head, row, strict=True)) for row in rows], indent=r.choice([None, 2]))
    else:
        data = "\n".join("; ".join(f"{k}: {v}" for k, v in zip(head, row, strict=True)) for row in rows)
    task = r.choice(
        [
            f"Turn these {what} into a markdown table.",
            f"Turn these {what} into a JSON list of objects.",
            f"Turn this list of {what} into CSV with a header line.",
            f"Sort these {what} by {head[1]} and show the result as a table.",
            f"Which of these {what} has the highest {head[1]}?",
            f"Which of these {what} has the lowest {head[1]}?",
            f"Describe these {what} in two sentences.",
            f"What is the total {head[1]} of these {what}?",
            f"Write a Python list of dictionaries for these {what}.",
            f"Write SQL statements that create a table for these {what} and insert the rows.",
            f"Write a sentence about each of these {what}.",
            f"Write an HTML table for these {what}.",
        ]
    )
    return f"{task}\n\n{data}"


def extract(r: Random) -> str:
    """A request to extract given fields from a passage as JSON, YAML or a list."""
    fields, make = r.choice(
        [
            ("name, age, job and town", _bio),
            ("order number, product, date and problem", _order),
            ("day, place and temperature range", _weather),
            ("place, town and what happened", _news),
            ("person, task and deadline", _notes),
        ]
    )
    form = r.choice(["as a JSON object", "as JSON", "as a bullet list", "in YAML", "as a table"])
    return f"{r.choice(['Extract', 'Read the text and give me', 'Find'])} the {fields} {form}.\n\n{make(r)}"


def choose(r: Random) -> str:
    """A request to answer a question from a passage, with the answer somewhere in it."""
    name = r.choice(NAMES)
    town, place, day, hour = r.choice(TOWNS), r.choice(PLACES), r.choice(DAYS), r.randint(7, 18)
    facts = [
        f"{name} works at the {place} in {town}.",
        f"The {place} opens at {hour} o'clock and is closed on {day}.",
        f"A ticket costs {r.randint(3, 25)} dollars, and children pay half.",
        f"{r.choice(NAMES)} comes every week with {r.randint(2, 9)} friends.",
    ]
    r.shuffle(facts)
    question = r.choice(
        [
            f"Where does {name} work?",
            f"On which day is the {place} closed?",
            "How much does a child pay?",
            "When does it open?",
            "Who comes every week?",
            "Write a short notice with this information.",
            "Can I visit on a Sunday evening?",
        ]
    )
    return f"{' '.join(facts)}\n\n{question}"
