"""A server in SGLang's dialect whose every figure is known: it follows a script, and notes when it really did so.

    python -m tests.calibrated_server SCRIPT.json LOG.jsonl      # prints its port, then serves until killed

A script is a list of ``Line``, one per prompt. Times are kept by absolute deadlines, the last millisecond by waiting
busily, so that nothing adds up; the log has a line per request with the moments (CLOCK_MONOTONIC, which a client on
this machine shares) of its arrival and of each chunk.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_SPIN_S = 0.0015


@dataclass(frozen=True)
class Line:
    """What happens to a request whose text contains ``prompt``."""

    prompt: str
    ttft_s: float
    gaps_s: list[float]
    """Before each chunk after the first."""
    tokens: list[int]
    """Output tokens of each chunk, the first included."""
    correct: list[int]
    """Correct drafts of each verification step, which is each chunk after the first; empty without speculation."""
    proposed: int
    """Draft tokens of a step."""
    finish: str
    """``stop`` (an end-of-sequence token) or ``length``."""


class Server:
    def __init__(self, script: list[Line], log: Path) -> None:
        self.script, self.log = script, log.open("a")
        self.totals = {"spec_verify_calls": 0, "generation_tokens": 0, "prompt_tokens": 0, "num_requests": 0}
        self.steps = self.correct = 0  # since the last flush, as /server_info has it

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                arrived = time.monotonic()
                path = head.split(b" ", 2)[1]
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
                if path == b"/generate":
                    await self.generate(json.loads(body), arrived, writer)
                else:
                    writer.write(self.answer(path.decode()))
                if fields.get(b"connection") == b"close":
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    def answer(self, path: str) -> bytes:
        if path == "/metrics":
            text = "".join(f"sglang:{name}_total{{}} {value}\n" for name, value in self.totals.items())
        elif path == "/server_info":
            states = [{"avg_spec_accept_length": 1 + self.correct / self.steps} if self.steps else {}]
            text = json.dumps({"internal_states": states})
        else:
            text = "Cache flushed."
            self.steps = self.correct = 0
        return f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()

    async def generate(self, body: dict[str, Any], arrived: float, writer: asyncio.StreamWriter) -> None:
        line = next(line for line in self.script if line.prompt in body["text"])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        due, total, moments = arrived, 0, []
        for place, (gap, tokens) in enumerate(zip([line.ttft_s, *line.gaps_s], line.tokens, strict=True)):
            due += gap
            total += tokens
            last = place == len(line.gaps_s)
            event = f"data: {json.dumps(self.event(line, total, last))}\n\n".encode()
            await asyncio.sleep(max(due - time.monotonic() - _SPIN_S, 0))
            while time.monotonic() < due:
                pass
            moments.append(time.monotonic())
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.totals["generation_tokens"] += total
        self.totals["prompt_tokens"] += 5
        self.totals["num_requests"] += 1
        self.totals["spec_verify_calls"] += len(line.correct)
        self.steps += len(line.correct)
        self.correct += sum(line.correct)
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        noted = {"prompt": line.prompt, "arrived": arrived, "chunks": moments, "ended": time.monotonic()}
        self.log.write(json.dumps(noted) + "\n")
        self.log.flush()

    @staticmethod
    def event(line: Line, total: int, last: bool) -> dict[str, Any]:
        ids = list(range(100, 100 + total))
        meta: dict[str, Any] = {
            "finish_reason": None,
            "prompt_tokens": 5,
            "completion_tokens": total,
            "cached_tokens": 0,
        }
        if last:
            meta["finish_reason"] = {"type": line.finish}
        if last and line.correct:
            histogram = [line.correct.count(number) for number in range(line.proposed + 1)]
            meta |= {
                "spec_verify_ct": len(line.correct),
                "spec_num_correct_drafts": sum(line.correct),
                "spec_num_proposed_drafts": line.proposed * len(line.correct),
                "spec_correct_drafts_histogram": histogram,
            }
        return {"text": " ".join(map(str, ids)), "output_ids": ids, "meta_info": meta}


async def main(script: Path, log: Path) -> None:
    server = Server([Line(**entry) for entry in json.loads(script.read_text())], log)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


def write_script(lines: list[Line], path: Path) -> Path:
    path.write_text(json.dumps([asdict(line) for line in lines]))
    return path


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
