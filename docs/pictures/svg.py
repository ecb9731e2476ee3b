"""Shared by the scripts in this folder: text that is wrapped and measured by eye, boxes, and two colour schemes.

An SVG that these scripts write has its own background. It is light by default and dark where the viewer prefers that.
"""

from html import escape

LIGHT = {
    "background": "#ffffff", "line": "#57606a", "text": "#1f2328", "faint": "#57606a", "frame": "#8c959f",
    "pure": "#ddf4e4", "shell": "#dcebfb", "keeper": "#fdeccc", "edge": "#eef0f2", "note": "#fff8c5",
}  # fmt: skip
DARK = {
    "background": "#0d1117", "line": "#9aa4af", "text": "#e6edf3", "faint": "#9aa4af", "frame": "#6e7681",
    "pure": "#12351f", "shell": "#12304f", "keeper": "#4a3410", "edge": "#21262d", "note": "#3b3208",
}  # fmt: skip


def rules(colours):
    fills = "".join(f".{name}{{fill:{colour}}}" for name, colour in colours.items())
    return fills + f".stroke{{stroke:{colours['line']};fill:none}}.framed{{stroke:{colours['frame']}}}"


def document(width, height, body, title):
    style = "text{font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif}"
    style += rules(LIGHT) + "@media(prefers-color-scheme:dark){" + rules(DARK) + "}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{escape(title)}</title><style>{style}</style>\n'
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 1L10 5L0 9z" class="line"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" rx="6" class="background"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def text(x, y, words, size=12, anchor="start", style="text", bold=False):
    facts = f'x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" class="{style}"'
    facts += ' font-weight="600"' if bold else ""
    return f"<text {facts}>{escape(words)}</text>"


def box(x, y, width, height, style, radius=4):
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" class="{style} framed"/>'


def arrow(x1, y1, x2, y2, dashed=False):
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path d="M{x1} {y1}L{x2} {y2}" class="stroke" marker-end="url(#head)"{dash}/>'


def wrap(words, width, size=12):
    """Lines that fit into so many pixels, judged by the width of an average letter."""
    most = max(8, int(width / (size * 0.54)))
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
