"""Records `make demo` in a terminal and draws what it printed, for the README.

`python -m docs.terminal_picture make demo` runs the command and writes docs/demo.cast and docs/demo.svg; without a
command, the stored recording is drawn again. The recording is an asciicast, version 2 (docs.asciinema.org): `asciinema
play docs/demo.cast` shows it as it ran. It is never edited by hand; paths below the checkout become relative ones.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).resolve().parent
CAST, PICTURE = HERE / "demo.cast", HERE / "demo.svg"

COLUMNS, ROWS = 120, 40

FOLDED = (
    (r"^ +[\d.]+ s  (created|the program:)", 3, 4),
    (r"files uploaded", 0, 1),
    (r"INFO |^Running entrypoint|^there are places|^connecting to|^loading torch|^W&B is off", 0, 0),
    (r"^epoch +\d|^checkpoint \d", 3, 3),
    (r"^ +\d+ +\d+ +[\d.]+ +[\d.]+%", 2, 2),
    (r"^# (one by one|torch|all_reduce a|time:|stage|Out of|Avg)|^# +\d+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +\d+$", 0, 0),
    (r"^  (result|logs|Kubernetes|data bucket|runs bucket|then, for|the dashboard's) ", 0, 0),
)
"""Of lines that follow one another and match a pattern, how many are drawn at the beginning and at the end."""

WIDTH, HEIGHT, MARGIN, TIME_COLUMNS = 7.2, 15, 14, 8
"""Of a character, a line and the edge, in units of the drawing; columns before the text."""

BACK, TEXT, SOFT, GREEN, BLUE = "#0d1117", "#d6dde5", "#7d8896", "#56d364", "#79c0ff"


@dataclass(frozen=True)
class Line:
    """One line of the terminal: the second in which it was complete, its text, its colour."""

    seconds: float
    text: str
    colour: str = TEXT


def record(command: Sequence[str], cast: Path = CAST) -> int:
    """Run a command in a terminal of its own and write its lines, each with its second; returns the exit status."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (ROWS, COLUMNS))
    begun = time.monotonic()
    child = subprocess.Popen(command, cwd=HERE.parent, stdin=subprocess.DEVNULL, stdout=its, stderr=its)
    os.close(its)
    with cast.open("w", encoding="utf-8") as file:
        print(json.dumps({"version": 2, "width": COLUMNS, "height": ROWS, "title": " ".join(command)}), file=file)
        for line in _lines(ours):
            text = line.decode().replace(f"{HERE.parent}/", "")
            print(json.dumps([round(time.monotonic() - begun, 2), "o", f"{text}\n"], ensure_ascii=False), file=file)
            print(text)
    os.close(ours)
    return child.wait()


def _lines(terminal: int) -> Iterator[bytes]:
    rest = b""
    while True:
        try:
            rest += os.read(terminal, 65536)
        except OSError:  # Linux says EIO once nobody has the other side open
            return
        *lines, rest = rest.split(b"\n")
        yield from lines


def draw(cast: Path, path: Path) -> None:
    """Write a recording as one picture, its repeated lines folded."""
    header, *events = [json.loads(line) for line in cast.read_text(encoding="utf-8").splitlines()]
    lines = [Line(0.0, f"$ {header['title']}", BLUE), *folded([_line(seconds, text) for seconds, _, text in events])]
    width = round((COLUMNS + TIME_COLUMNS) * WIDTH) + 2 * MARGIN
    height = len(lines) * HEIGHT + 2 * MARGIN
    told = [None, *(round(line.seconds) for line in lines)]  # a second is written once
    drawn = "\n".join(
        _drawn(line, MARGIN + HEIGHT * (row + 1) - 4, with_time=bool(line.text) and round(line.seconds) != told[row])
        for row, line in enumerate(lines)
    )
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="12">\n'
        f"<title>{escape(header['title'])}</title>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACK}"/>\n{drawn}\n</svg>\n',
        encoding="utf-8",
    )


def _line(seconds: float, text: str) -> Line:
    plain = re.sub(r"\x1b\[\d*[mK]|\r", "", text).rstrip()
    colour = GREEN if "\x1b[32m" in text else BLUE if plain.startswith(("== ", "$ ")) else TEXT
    return Line(seconds, plain if len(plain) <= COLUMNS else f"{plain[: COLUMNS - 1]}…", colour)


def folded(lines: Sequence[Line]) -> Iterator[Line]:
    """The lines, without those that repeat their neighbours; the number left out stands in their place."""
    for rule, group in groupby(
        lines, lambda line: next((rule for rule in FOLDED if re.search(rule[0], line.text)), None)
    ):
        alike = list(group)
        first, last = rule[1:] if rule else (len(alike), 0)
        if len(alike) <= first + last + 1:
            yield from alike
            continue
        left_out = len(alike) - first - last
        yield from alike[:first]
        yield Line(alike[-last - 1].seconds, f"... {left_out} more lines", SOFT)
        yield from alike[len(alike) - last :]


def _drawn(line: Line, y: int, with_time: bool) -> str:
    time_shown = f"{line.seconds:.0f} s"
    parts = [_text(TIME_COLUMNS - 1 - len(time_shown), y, time_shown, SOFT)] if with_time else []
    column = TIME_COLUMNS
    # Each run of blank, Braille or other characters has its own place and length: fonts differ in the width of a dot.
    for kind, run in groupby(line.text, lambda character: (character == " ") + 2 * ("\u2800" <= character <= "\u28ff")):
        word = "".join(run)
        if kind != 1:
            parts.append(_text(column, y, word, line.colour))
        column += len(word)
    return "".join(parts)


def _text(column: int, y: int, text: str, colour: str) -> str:
    place = f'x="{MARGIN + column * WIDTH:.1f}" y="{y}" textLength="{len(text) * WIDTH:.1f}"'
    return f'<text {place} lengthAdjust="spacingAndGlyphs" fill="{colour}">{escape(text)}</text>'


if __name__ == "__main__":
    status = record(sys.argv[1:]) if sys.argv[1:] else 0
    draw(CAST, PICTURE)
    sys.exit(status)
