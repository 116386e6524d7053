"""Requests with numbers: word problems, plain arithmetic, unit conversion, sequences, dates, small logic puzzles.

Standard library only; every choice comes from the given `random.Random`. Figures are chosen so that most answers are
whole numbers, as in schoolbooks.
"""

from __future__ import annotations

from random import Random

from runners.engine.training.passages import DAYS, MONTHS, NAMES

THINGS = "apples,pencils,marbles,stickers,cookies,books,oranges,cards,eggs,balloons,stamps,shells,muffins,flowers,coins,buttons".split(
    ","
)
ASK = (
    "",
    "",
    "",
    " Show your work.",
    " Explain your reasoning step by step.",
    " Think step by step.",
    " Give only the answer.",
)


def word_problem(r: Random) -> str:
    """A schoolbook word problem with one to three steps of arithmetic."""
    a, b = r.sample(NAMES, 2)
    t, u = r.sample(THINGS, 2)
    n, m, k = r.randint(4, 60), r.randint(2, 12), r.randint(2, 9)
    price, pack, hours, speed = r.randint(2, 25), r.randint(3, 12), r.randint(2, 9), r.randint(4, 18) * 5
    width, length = r.randint(3, 20), r.randint(21, 45)
    pct, total = r.choice([5, 10, 15, 20, 25, 30, 40, 50, 75]), r.randint(2, 40) * 20
    problems = [
        f"{a} has {n + m} {t} and gives {m} of them to {b}. How many {t} does {a} have left?",
        f"{a} has {n} {t} and {b} has {k} times as many. How many {t} do they have together?",
        f"A shop sells {t} in packs of {pack}. {a} buys {m} packs and uses {pack} {t}. How many are left?",
        f"One box holds {pack} {t}. How many boxes does {a} need for {pack * m} {t}?",
        f"{a} buys {m} {t} for {price} dollars each and pays with a {price * m + k}-dollar gift card. How much money remains?",
        f"{t.capitalize()} cost {price} dollars and {u} cost {price + k} dollars. {a} buys {k} {t} and {m} {u}. What is the total?",
        f"A train travels at {speed} kilometers per hour for {hours} hours. How far does it go?",
        f"{a} drives {speed * hours} kilometers in {hours} hours. What is the average speed?",
        f"A rectangular garden is {length} meters long and {width} meters wide. What are its area and its perimeter?",
        f"A square field has sides of {n} meters. How long is the fence around it?",
        f"What is {pct} percent of {total}?",
        f"A jacket costs {total} dollars. It is reduced by {pct} percent. What is the new price?",
        f"A class has {n + m} students. {m} of them are absent. What fraction of the class is present?",
        f"{a} earns {price} dollars an hour and works {hours} hours a day, {k} days a week. How much does {a} earn in a week?",
        f"{a} reads {n} pages on {r.choice(DAYS)} and {m} pages more on the next day. How many pages is that in all?",
        f"A recipe for {k} people needs {k * 50} grams of sugar. How much sugar is needed for {m} people?",
        f"{a} is {k} years older than {b}. Together they are {2 * n + k} years old. How old is {b}?",
        f"{a} saves {price} dollars every week. After how many weeks can {a} buy a bicycle for {price * (n + m)} dollars?",
        f"A tank holds {n * 10} liters. A pump fills {k} liters per minute, and {n * 10 - k * m if n * 10 > k * m else k} liters are already inside. "
        "How long does it take to fill the tank?",
        f"There are {m} tables with {k} chairs each and {pack} more chairs by the wall. How many chairs are there?",
        f"{a} ran {k} kilometers on {hours} days and {k + 2} kilometers on {m} days. How far did {a} run altogether?",
        f"The average of {k} numbers is {n}. What is their sum?",
        f"A bus leaves with {n + 20} passengers. At the first stop {m} get off and {k} get on; at the second stop {k} get off. "
        "How many passengers are on the bus now?",
        f"{a} divides {pack * m + 1} {t} equally among {pack} children. How many does each child get, and how many are left over?",
        f"A phone plan costs {price} dollars a month plus {k} cents for every message. {a} sends {n} messages. What is the bill?",
        f"Two numbers add up to {n + m} and differ by {abs(n - m)}. What are the two numbers?",
        f"A baker makes {pack} trays with {m} {t} each and sells {min(pack * m - 1, n)} of them. How many are not sold?",
        f"The sum of three consecutive numbers is {3 * n}. Find the numbers.",
        f"A movie is {60 + 5 * m} minutes long and starts at {hours}:{r.choice(['00', '15', '30'])}. When does it end?",
        f"{a} bought {t} for {n + 10} dollars and sold them for {n + 10 + m} dollars. What was the profit in dollars and in percent?",
        f"A bag holds {k} red and {m} blue balls. What is the probability of drawing a red one?",
        f"{a} and {b} share {(k + 1) * m} {t} in the ratio {k} to 1. How many does each of them get?",
    ]
    return r.choice(problems) + r.choice(ASK)


def arithmetic(r: Random) -> str:
    """Plain sums, equations and sequences, worded in several ways."""
    x, y, z = r.randint(2, 999), r.randint(2, 99), r.randint(2, 12)
    step, start = r.randint(2, 9), r.randint(1, 30)
    seq = ", ".join(str(start + step * i) for i in range(4))
    geo = ", ".join(str(z * (2 if step % 2 else 3) ** i) for i in range(4))
    numbers = ", ".join(str(r.randint(1, 99)) for _ in range(r.randint(4, 7)))
    tasks = [
        f"What is {x} + {y}?",
        f"What is {x + y} - {y}?",
        f"What is {y} times {z}?",
        f"Calculate {x} * {z}.",
        f"What is {y * z} divided by {z}?",
        f"Compute ({y} + {z}) * {step}.",
        f"Compute {y} + {z} * {step} and explain the order of operations.",
        f"Add {x}, {y} and {z}.",
        f"Solve for x: {step}x + {z} = {step * start + z}",
        f"Solve the equation x - {z} = {start}.",
        f"Solve {z}x = {z * start}. Show each step.",
        f"What is the next number in the sequence {seq}?",
        f"What is the next number in the sequence {geo}? Explain the rule.",
        f"Find the average of {numbers}.",
        f"Sort these numbers from smallest to largest: {numbers}",
        f"Which of these numbers are even? {numbers}",
        f"Find the largest and the smallest of these numbers: {numbers}",
        f"What is the sum of {numbers}?",
        f"Simplify the fraction {step * z}/{step * (z + start)}.",
        f"Write {step}/{step * 2 + 1} as a decimal with two digits.",
        f"What is {step}/{z} + {1}/{z}?",
        f"Write {y} percent as a fraction and as a decimal.",
        f"What is {z} to the power of {r.randint(2, 4)}?",
        f"What is the square root of {z * z}?",
        f"Convert the number {y} to binary.",
        f"Is {x} divisible by {step}? Explain how you know.",
        f"Find the greatest common divisor of {z * step} and {z * start}.",
        f"Find the least common multiple of {step} and {z}.",
        f"Expand (x + {step})(x + {z}).",
        f"Estimate {x} * {y} without a calculator.",
        f"Multiply {x} by {y} and show the work.",
        f"If f(x) = {step}x + {start}, what is f({z})?",
    ]
    return r.choice(tasks)


_UNITS = (
    ("kilometers", "miles", 1, 400),
    ("miles", "kilometers", 1, 400),
    ("meters", "feet", 1, 300),
    ("feet", "meters", 1, 300),
    ("inches", "centimeters", 1, 120),
    ("centimeters", "inches", 1, 300),
    ("kilograms", "pounds", 1, 200),
    ("pounds", "kilograms", 1, 300),
    ("ounces", "grams", 1, 64),
    ("liters", "gallons", 1, 100),
    ("cups", "milliliters", 1, 12),
    ("degrees Celsius", "degrees Fahrenheit", -20, 110),
    ("degrees Fahrenheit", "degrees Celsius", 0, 230),
    ("minutes", "seconds", 2, 90),
    ("hours", "minutes", 2, 72),
    ("days", "hours", 2, 60),
    ("weeks", "days", 2, 52),
    ("kilobytes", "bytes", 1, 64),
    ("gigabytes", "megabytes", 1, 64),
    ("meters per second", "kilometers per hour", 1, 60),
    ("hectares", "square meters", 1, 50),
    ("tons", "kilograms", 1, 40),
)


def conversion(r: Random) -> str:
    """Units, dates and clock times."""
    source, target, low, high = r.choice(_UNITS)
    n = r.randint(low, high)
    day, month = r.choice(DAYS), r.choice(MONTHS)
    return r.choice(
        [
            f"Convert {n} {source} to {target}.",
            f"How many {target} are {n} {source}?",
            f"What is {n} {source} in {target}?",
            f"Convert {n} {source} to {target} and show the formula.",
            f"Write a Python function that converts {source} to {target}, and use it for {n}.",
            f"Today is {day}. Which day of the week is it in {r.randint(2, 60)} days?",
            f"How many days are there from {month} {r.randint(1, 14)} to {month} {r.randint(15, 28)}?",
            f"It is {r.randint(1, 12)}:{r.randint(0, 59):02d}. What time is it in {r.randint(10, 300)} minutes?",
            f"Write {r.randint(13, 23)}:{r.randint(0, 59):02d} in twelve-hour time.",
            f"A flight takes off at {r.randint(6, 11)}:{r.choice(['05', '20', '40'])} and lands {r.randint(2, 9)} hours and {r.randint(5, 55)} minutes later. "
            "When does it land?",
        ]
    )


def puzzle(r: Random) -> str:
    """Small logic puzzles that need several sentences of reasoning."""
    a, b, c, d = r.sample(NAMES, 4)
    quality, opposite = r.choice(
        [
            ("taller", "tallest"),
            ("older", "oldest"),
            ("faster", "fastest"),
            ("stronger", "strongest"),
            ("richer", "richest"),
        ]
    )
    colors = r.sample("red blue green yellow white black".split(), 3)
    n = r.randint(3, 9)
    base = r.choice(
        [
            f"{a} is {quality} than {b}. {b} is {quality} than {c}. Who is the {opposite}?",
            f"{a} is {quality} than {b}, and {c} is less {quality.removesuffix('er')} than {b}. Put the three in order.",
            f"{a}, {b} and {c} own a {colors[0]}, a {colors[1]} and a {colors[2]} car. {a} does not own the {colors[0]} one, and {b} owns the {colors[1]} one. "
            f"Which car does {c} own?",
            f"All {r.choice(THINGS)} in the box are {colors[0]}. {a} takes one thing out of the box, and it is {colors[1]}. Can it be one of them? Why?",
            f"{a} sits to the left of {b}. {c} sits to the right of {b}. {d} sits between {a} and {b}. What is the order from left to right?",
            f"If it rains, {a} takes the bus. {a} did not take the bus today. Did it rain? Explain.",
            f"{a} finishes a race before {b} but after {c}. {d} finishes last. Who wins?",
            f"{a} has {n} brothers, and each brother has {r.randint(1, 3)} sisters. How many children are in the family?",
            f"Yesterday was {r.choice(DAYS)}. What day is it {n} days from now?",
            f"{a} needs {n} minutes to wash one car. {b} needs twice as long. How many cars can both wash in {n * 4} minutes?",
            f"Some {r.choice(THINGS)} are {colors[0]}. Nothing {colors[0]} is heavy. What follows from this?",
            f"{a} says that {b} is lying. {b} says that {c} is lying. {c} says nothing. If exactly one of them lies, who is it?",
            f"A rope is cut into {n} equal pieces. How many cuts are needed? Explain why.",
            f"{a} walks {n} blocks north, {n} blocks east and {n} blocks south. Where is {a} now, seen from the start?",
        ]
    )
    return base + r.choice(ASK[:-1])
