"""YAML documents: mappings whose entries have comments, in a deterministic form."""

import json
import re
import textwrap

from .errors import WrongCombination

WIDTH = 100

# Strings that need no quotes in any version of YAML.
_PLAIN = re.compile(r"((--?)?[A-Za-z/$][A-Za-z0-9_./$()-]*(:[A-Za-z0-9_./$()-]+)*|\d+[KMGT]i)\Z")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


# What YAML does not allow in a text, and the line breaks that only some of its readers know.
_UNPRINTABLE = re.compile(
    "[^\\t\\n -~\\xa0-\\u2027\\u202a-\\ud7ff\\ue000-\\ufefe\\uff00-\\ufffd\\U00010000-\\U0010ffff]"
)


def _escaped(text):
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def _quoted(text):
    return _escaped(json.dumps(text, ensure_ascii=False))


class Map(dict):
    """A mapping in its written order. `note(key, why)` adds a comment above the entry."""

    def __init__(self, *entries, **more):
        super().__init__(*entries, **more)
        self.notes = {}

    def note(self, key, why):
        if key not in self:
            raise KeyError(key)
        self.notes[key] = why
        return self

    def add(self, key, value, why=None):
        """Sets an entry that is not None, with its comment."""
        if value is not None:
            self[key] = value
            if why:
                self.notes[key] = why
        return self


class Item(Map):
    """A mapping in a list; `why` is the comment above it."""

    def __init__(self, *entries, why=None, **more):
        super().__init__(*entries, **more)
        self.why = why


def scalar(value):
    if value is True or value is False:
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, (int, float)):
        return json.dumps(value)
    if _PLAIN.match(value) and value.lower() not in _WORDS:
        return value
    return _quoted(value)


def comment(text, indent):
    prefix = " " * indent + "# "
    lines = []
    for paragraph in _escaped(text).split("\n"):
        # Commands stay on one line, so that they can be copied.
        copied = paragraph.startswith("  ")
        lines += (
            [prefix + paragraph]
            if copied
            else textwrap.wrap(
                paragraph, WIDTH, initial_indent=prefix, subsequent_indent=prefix, break_on_hyphens=False
            )
        )
    return lines


def _flow(values):
    return "[" + ", ".join(scalar(value) for value in values) + "]"


def _is_short(values):
    return (
        all(not isinstance(value, (dict, list)) and "\n" not in str(value) for value in values)
        and len(_flow(values)) < 90
    )


def _entry(key, value, indent):
    """The lines of one entry of a mapping."""
    start = " " * indent + scalar(key) + ":"
    if isinstance(value, dict):
        return [start + " {}"] if not value else [start, *_mapping(value, indent + 2)]
    if isinstance(value, list):
        if not value or _is_short(value):
            return [f"{start} {_flow(value)}"]
        return [start, *_sequence(value, indent + 2)]
    if isinstance(value, str) and "\n" in value:
        ends_once = value.endswith("\n") and not value.endswith("\n\n")
        if not ends_once or value[0] in " \n" or "\t" in value or _UNPRINTABLE.search(value):
            return [f"{start} {_quoted(value)}"]
        body = [(" " * (indent + 2) + line).rstrip() for line in value[:-1].split("\n")]
        return [start + " |", *body]
    return [f"{start} {scalar(value)}"]


def _mapping(value, indent):
    lines = []
    for key, entry in value.items():
        why = getattr(value, "notes", {}).get(key)
        if why:
            lines += comment(why, indent)
        lines += _entry(key, entry, indent)
    return lines


def _sequence(values, indent):
    lines = []
    for value in values:
        if isinstance(value, dict) and value:
            if getattr(value, "why", None):
                lines += comment(value.why, indent)
            body = _mapping(value, indent + 2)
            # The dash precedes the first entry; a comment of that entry precedes the dash.
            at = next(i for i, line in enumerate(body) if not line.lstrip().startswith("#"))
            lines += [line[2:] for line in body[:at]]
            lines.append(" " * indent + "- " + body[at][indent + 2 :])
            lines += body[at + 1 :]
        else:
            lines.append(" " * indent + "- " + (_flow(value) if isinstance(value, list) else scalar(value)))
    return lines


def render(documents, header=""):
    """One text: the header as a comment, then each document. The text is parsed again and compared."""
    parts = []
    if header:
        parts.append("\n".join(comment(header, 0)))
    for document in documents:
        why = getattr(document, "why", None)
        parts.append("\n".join(["---", *(comment(why, 0) if why else []), *_mapping(document, 0)]))
    text = "\n".join(parts) + "\n"
    if list(load(text)) != plain(documents):
        raise AssertionError("the YAML that was written does not read back as it was meant; please report this")
    return text


def plain(value):
    """The same without comments: dicts, lists, strings, numbers."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    return value


def load(text):
    """The documents of a text of YAML; a duplicate key is an error."""
    yaml = _yaml()

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        def construct_mapping(self, node, deep=False):
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    raise yaml.YAMLError(f"'{key}' stands twice in one mapping, line {node.start_mark.line + 1}")
            return super().construct_mapping(node, deep)

    for document in yaml.load_all(text, Loader):
        if document is not None:
            yield document


def yaml_error():
    """The error that load() raises for a text that is no YAML."""
    return _yaml().YAMLError


def _yaml():
    try:
        import yaml
    except ImportError:
        raise WrongCombination('PyYAML is missing: pip install "farandole[kubernetes]"') from None
    return yaml
