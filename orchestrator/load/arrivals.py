"""When the requests of an open loop are sent: decided before the first of them, whatever the server does."""

from __future__ import annotations

import hashlib
import math
import random
from typing import Literal

Arrival = Literal["constant", "poisson"]


def schedule(arrival: Arrival, rate: float, count: int, seed: int, repeat: int) -> list[float]:
    """Seconds from the first request to each, ``rate`` requests/s on average.

    ``constant``: equal gaps. ``poisson``: independent exponential gaps (inverse of their distribution function), drawn
    from ``seed`` and ``repeat`` alone: every arm gets the same ones, and every rate the same pattern, stretched.
    """
    if arrival == "constant":
        return [number / rate for number in range(count)]
    draw = random.Random(hashlib.sha256(f"arrivals/{seed}/{repeat}".encode()).digest())
    times, now = [], 0.0
    for _ in range(count):
        times.append(now / rate)
        now -= math.log(1.0 - draw.random())
    return times
