"""A log is read as far as it is needed, however long a server that is broken makes it."""

from __future__ import annotations

from pathlib import Path

from runners.starting import LogLines, log_text, tail

MIB = 2**20


def test_lines_come_once_and_whole(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    lines = LogLines(log)
    assert list(lines) == []
    log.write_text("one\ntw")
    assert list(lines) == ["one"]
    with log.open("a") as file:
        file.write("o\nthree\n")
    assert list(lines) == ["two", "three"] and list(lines) == []


def test_a_line_without_an_end_is_read_in_pieces(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"x" * (3 * MIB) + b"\nready\n")
    lines = LogLines(log)
    read = [list(lines) for _ in range(5)]
    assert [sum(map(len, piece)) for piece in read] == [MIB, MIB, MIB, len("ready"), 0]
    assert read[3] == ["", "ready"]


def test_a_very_long_log_is_read_at_its_ends(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert log_text(log) == "" and tail(log) == ""
    with log.open("wb") as file:
        file.write(b"first\n")
        file.seek(500 * MIB)  # a sparse file: it takes no room
        file.write(b"\n" + b"y" * 5000 + b"\nlast\n")
    text = log_text(log)
    assert text.startswith("first\n") and text.endswith("\nlast\n") and "the middle is left out" in text
    assert len(text) < 5 * MIB
    assert tail(log).endswith("last") and max(map(len, tail(log).splitlines())) == 1000
    log.write_text("short\nwhole\n")
    assert log_text(log) == "short\nwhole\n"
