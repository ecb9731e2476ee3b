"""Reads include/farandole/farandole.h and farandole.hpp and writes their reference as MyST Markdown.

A comment documents the declaration that follows it without a blank line, or the one that ends on its own line.
"""

import re
import textwrap

SECTION = re.compile(r"/\* -{4} ([^\n]+?)[ -]*(?:\n(.*?))?\*/", re.S)


class Declaration:
    """One declaration of a header: its kind (function, enum, struct, type, macro), name, source and comment."""

    def __init__(self, kind, name, source, comment):
        self.kind = kind
        self.name = name
        self.source = source
        self.comment = comment


class Section:
    """A part of the C header: its title, the text under the title, and its declarations."""

    def __init__(self, title, text):
        self.title = title
        self.text = text
        self.declarations = []


def comment_text(comment):
    """The words of /* ... */, with the stars and the indentation removed."""
    inner = comment[2:-2]
    lines = [re.sub(r"^\s*\* ?", "", line) for line in inner.split("\n")]
    return textwrap.dedent("\n".join(line.rstrip() for line in lines)).strip()


def _end_of_declaration(text, start):
    depth = 0
    position = start
    while True:
        if text.startswith("/*", position):
            position = text.index("*/", position) + 2
            continue
        character = text[position]
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(character, 0)
        position += 1
        if character == ";" and depth == 0:
            return position


def _classified(source, comment):
    plain = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    if plain.startswith("FDL_API"):
        signature = " ".join(plain.removeprefix("FDL_API").rstrip("; \n").split())
        return Declaration("function", re.search(r"(\w+)\(", signature).group(1), signature, comment)
    kind = re.match(r"typedef (enum|struct) (\w+) \{", plain)
    if kind:
        return Declaration(kind.group(1), kind.group(2), source, comment)
    name = re.search(r"\(\*(\w+)\)", plain) or re.search(r"(\w+);$", plain)
    return Declaration("type", name.group(1), source, comment)


def sections_of(header):
    """The sections of farandole.h, in order. Preprocessor lines are passed over, FDL_UNSTATED excepted."""
    text = header[header.index('extern "C" {') :]
    sections = []
    comment, comment_end = "", -1
    position = text.index("\n")
    while position < len(text):
        title = SECTION.match(text, position)
        if title and text.startswith("/* ----", position):
            body = re.sub(r"(?m)^\s*\* ?", "", title.group(2) or "").strip(" -\n")
            sections.append(Section(title.group(1), body))
            position = title.end()
        elif text.startswith("/*", position):
            end = text.index("*/", position) + 2
            same_line = text.rfind("\n", 0, position) + 1
            before = text[same_line:position].strip()
            words = comment_text(text[position:end])
            if before and sections and sections[-1].declarations:
                last = sections[-1].declarations[-1]
                last.comment = f"{last.comment}\n\n{words}".strip()
            else:
                comment, comment_end = words, end
            position = end
        elif text.startswith("#", position):
            end = text.index("\n", position)
            macro = re.match(r"#define (FDL_\w+) (.*)", text[position:end])
            if macro and text[comment_end:position].count("\n") == 1 and sections:
                sections[-1].declarations.append(Declaration("macro", macro.group(1), text[position:end], comment))
            position = end
        elif text.startswith("}", position):
            break
        elif text[position].isspace():
            position += 1
        else:
            end = _end_of_declaration(text, position)
            near = text[comment_end:position].count("\n") == 1
            sections[-1].declarations.append(_classified(text[position:end], comment if near else ""))
            position = end
    return sections


def undocumented_c(sections):
    return [one.name for part in sections for one in part.declarations if one.kind == "function" and not one.comment]


def _fence(text, language, ticks=3):
    mark = "`" * ticks
    return f"{mark}{language}\n{text}\n{mark}"


def _c_declaration(one):
    lines = []
    if one.kind == "function":
        lines = [f"````{{c:function}} {one.source}", "", one.comment]
    elif one.kind == "macro":
        lines = [f"````{{c:macro}} {one.name}", "", one.comment, "", _fence(one.source, "c")]
    else:
        directive = "enum" if one.kind == "enum" else "struct" if one.kind == "struct" else "type"
        lines = [f"````{{c:{directive}}} {one.name}", "", one.comment, "", _fence(one.source, "c")]
    return "\n".join([*lines, "````", ""])


def c_page(header):
    """The Markdown page of farandole.h."""
    opening = comment_text(header[: header.index("*/") + 2]).replace("\nConventions\n", "\n## Conventions\n")
    parts = ["# C API", "", opening.replace("farandole.h:", "`farandole/farandole.h`:"), ""]
    for section in sections_of(header):
        parts += [f"## {section.title}", "", section.text, ""]
        parts += [_c_declaration(one) for one in section.declarations]
    return "\n".join(parts)


# ---- C++ ----------------------------------------------------------------------------------------------------------


class Member:
    """A function, class or field of farandole.hpp: its signature, its comment, and for a class its members."""

    def __init__(self, kind, signature, comment):
        self.kind = kind
        self.signature = signature
        self.comment = comment
        self.members = []


def _head(text, start):
    """A declaration from `start` to its body or end: (head, position after the whole declaration)."""
    depth = 0
    position = start
    while True:
        character = text[position]
        if character in "(<":
            depth += 1
        elif character in ")>":
            depth -= 1
        elif depth == 0 and character in ";{":
            break
        elif depth == 0 and character == "=" and text[position - 1 : position + 2] == " = ":
            break
        elif depth == 0 and text.startswith(" : ", position):
            break
        position += 1
    head = " ".join(text[start:position].split())
    braces = 0
    while True:
        if text[position] == "{":
            braces += 1
        elif text[position] == "}":
            braces -= 1
            if braces == 0 and text[position + 1 : position + 2] not in (",", ";"):
                if not re.match(r"\s*\{", text[position + 1 :]):
                    return head, position + 1
            elif braces == 0 and text[position + 1] == ";":
                return head, position + 2
        elif text[position] == ";" and braces == 0:
            return head, position + 1
        position += 1


def _members(text, inside_class):
    """The public declarations of a namespace's or a class's body."""
    found = []
    comment = ""
    position = 0
    while position < len(text):
        if text.startswith("//", position):
            end = text.find("\n", position)
            comment = f"{comment}\n{text[position + 2 : end].strip()}".strip()
            position = end + 1
            continue
        if text.startswith("\n", position) and text[position - 1 : position] == "\n":
            comment = ""
        if text[position].isspace():
            position += 1
            continue
        if text.startswith("private:", position):
            break
        if text.startswith("public:", position):
            position += len("public:")
            continue
        head, end = _head(text, position)
        whole = text[position:end]
        if re.match(r"class \w+", head):
            one = Member("class", head.split(" : ")[0], comment)
            one.members = _members(whole[whole.index("{") + 1 : whole.rindex("}")], True)
            found.append(one)
        elif "(" in head:
            found.append(Member("function", head.removeprefix("inline "), comment))
        elif inside_class:
            found.append(Member("field", head, comment))
        comment = ""
        position = end
    return found


def cpp_members(header):
    start = header.index("inline namespace api_0 {") + len("inline namespace api_0 {")
    return _members(header[start : header.index("}  // namespace api_0")], False)


def undocumented_cpp(members, scope="fdl::"):
    missing = []
    for one in members:
        if one.kind != "field" and not one.comment:
            missing.append(scope + one.signature)
        missing += undocumented_cpp(one.members, scope + one.signature.split()[-1] + "::")
    return missing


CPP_HEAD = """# C++ API

`farandole/farandole.hpp`, header-only, namespace `fdl`: the C API as objects that release themselves and errors that
are thrown. The page of the [C API](c.md) describes what each call does.
"""


def cpp_page(header):
    """The Markdown page of farandole.hpp."""
    parts = [CPP_HEAD]
    for one in cpp_members(header):
        if one.kind != "class":
            parts += [f"````{{cpp:function}} {_scoped(one.signature)}", "", one.comment, "````", ""]
            continue
        name = one.signature.split()[-1]
        parts += [f"## {name}", "", f"`````{{cpp:class}} fdl::{name}", "", one.comment, ""]
        for member in one.members:
            directive = "member" if member.kind == "field" else "function"
            parts += [f"````{{cpp:{directive}}} {member.signature}", "", member.comment, "````", ""]
        parts += ["`````", ""]
    return "\n".join(parts)


def _scoped(signature):
    return re.sub(r"(\w+)\(", r"fdl::\1(", signature, count=1)
