"""Writes <name>.svg for each <name>.seq in this folder. Run it in this folder: python sequence.py

A .seq file has one statement a line:

  title: WORDS                the heading
  lane NAME: WORDS            a column, from left to right
  A -> B: WORDS               a message (A -> A: work of A itself); A --> B: a reply, or what follows later
  note A: WORDS               a remark in A's column; note A B: across several columns
  at: WORDS                   the time, in the left margin, from here on
  == WORDS                    a new part
"""

import re
from pathlib import Path

import svg

COLUMN = 186
MARGIN = 24
LINE = 15


def parse(path):
    title, lanes, rows = path.stem, {}, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if match := re.fullmatch(r"title: (.+)", line):
            title = match[1]
        elif match := re.fullmatch(r"lane (\w+): (.+)", line):
            lanes[match[1]] = match[2]
        elif match := re.fullmatch(r"== (.+)", line):
            rows.append(("part", match[1]))
        elif match := re.fullmatch(r"at: (.+)", line):
            rows.append(("time", match[1]))
        elif match := re.fullmatch(r"note ([\w ]+): (.+)", line):
            rows.append(("note", match[1].split(), match[2]))
        elif match := re.fullmatch(r"(\w+) (-?->) (\w+): (.+)", line):
            rows.append(("message", match[1], match[3], match[2] == "-->", match[4]))
        else:
            raise SystemExit(f"{path}:{number}: not understood: {line}")
    return title, lanes, rows


class Drawing:
    def __init__(self, lanes, left):
        self.x = {name: left + COLUMN * (i + 0.5) for i, name in enumerate(lanes)}
        self.left = left
        self.right = left + COLUMN * len(lanes)
        self.body = []
        self.y = 96

    def words(self, x, lines, anchor="middle", style="text", size=12):
        for i, line in enumerate(lines):
            self.body.append(svg.text(x, self.y + LINE * i, line, size, anchor, style))
        self.y += LINE * len(lines)

    def part(self, words):
        self.y += 12
        self.body.append(svg.box(self.left, self.y, self.right - self.left, 22, "edge", 3))
        self.body.append(svg.text(self.left + 10, self.y + 15, words, 12, bold=True))
        self.y += 46

    def time(self, words):
        self.body.append(svg.text(MARGIN, self.y, words, 12, style="faint", bold=True))

    def note(self, names, words):
        first, last = self.x[names[0]], self.x[names[-1]]
        width = max(COLUMN - 12, last - first + COLUMN - 30)
        lines = svg.wrap(words, width - 14, 11)
        top = self.y - 12
        self.body.append(svg.box((first + last) / 2 - width / 2, top, width, LINE * len(lines) + 8, "note"))
        self.y += 3
        self.words((first + last) / 2 - width / 2 + 8, lines, "start", size=11)
        self.y += 14

    def message(self, source, target, dashed, words):
        a, b = self.x[source], self.x[target]
        if source == target:
            lines = svg.wrap(words, COLUMN - 34, 11)
            top = self.y - 8
            side = -1 if a + COLUMN > self.right else 1  # the last column has room on its left only
            path = f"M{a} {top}h{14 * side}v{LINE * len(lines) - 4}h{-14 * side}"
            self.body.append(f'<path d="{path}" class="stroke" marker-end="url(#head)"/>')
            self.words(a + 20 * side, lines, "start" if side > 0 else "end", size=11)
            self.y += 10
            return
        lines = svg.wrap(words, max(abs(a - b), COLUMN) - 18, 11)
        wide = max(len(line) for line in lines) * 6.2 + 8
        self.body.append(svg.box((a + b) / 2 - wide / 2, self.y - 12, wide, LINE * len(lines) + 2, "background", 0)
                         .replace(" framed", ""))  # fmt: skip
        self.words((a + b) / 2, lines, size=11)
        self.y -= 6
        self.body.append(svg.arrow(a, self.y, b, self.y, dashed))
        self.y += 24


def draw(path):
    title, lanes, rows = parse(path)
    left = 96 if any(row[0] == "time" for row in rows) else MARGIN
    drawing = Drawing(lanes, left)
    for kind, *facts in rows:
        getattr(drawing, kind)(*facts)
    bottom = drawing.y + 4
    back = [svg.text(MARGIN, 30, title, 16, bold=True)]
    for name, words in lanes.items():
        x = drawing.x[name]
        back.append(f'<path d="M{x} 72V{bottom}" class="stroke" stroke-dasharray="2 4"/>')
        lines = svg.wrap(words, COLUMN - 38)
        back.append(svg.box(x - COLUMN / 2 + 8, 44, COLUMN - 16, 34, "shell"))
        y = 66 if len(lines) == 1 else 59
        back += [svg.text(x, y + 14 * i, line, 12, "middle", bold=True) for i, line in enumerate(lines)]
    image = svg.document(int(drawing.right + MARGIN), int(bottom + 16), back + drawing.body, title)
    path.with_suffix(".svg").write_text(image)


if __name__ == "__main__":
    for each in sorted(Path(".").glob("*.seq")):
        draw(each)
