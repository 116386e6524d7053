"""The least that a client on aiohttp does, for compare.py: each line is stamped and parsed as it comes, as in the
Python clients of vLLM and SGLang. Prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from itertools import pairwise

import aiohttp
import orjson
import uvloop

BODY = orjson.dumps(
    {
        "model": "target",
        "messages": [{"role": "user", "content": "hi " * 16}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
)


async def measure(url: str, streams: int, count: int) -> None:
    gaps: list[float] = []
    left = iter(range(count))

    async def worker(session: aiohttp.ClientSession) -> None:
        for _ in left:
            stamps: list[float] = []
            async with session.post(
                f"{url}/v1/chat/completions", data=BODY, headers={"Content-Type": "application/json"}
            ) as response:
                async for line in response.content:
                    if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                        stamp = time.perf_counter()
                        if orjson.loads(line[6:])["choices"]:
                            stamps.append(stamp)
            gaps.extend(later - earlier for earlier, later in pairwise(stamps))

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        await asyncio.gather(*(worker(session) for _ in range(streams)))
    gaps.sort()
    print(json.dumps({"mean_s": sum(gaps) / len(gaps), "p99_s": gaps[int(0.99 * (len(gaps) - 1))]}))


if __name__ == "__main__":
    uvloop.run(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
