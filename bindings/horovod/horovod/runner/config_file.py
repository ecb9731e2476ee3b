"""Configuration files of horovodrun: a parser for the two levels of YAML that they use."""

import re

from farandole import hosts


def _scalar(text):
    text = text.strip()
    quoted = re.fullmatch(r"""(["'])(.*)\1\s*(?:#.*)?""", text)
    return quoted[2] if quoted else text.split(" #")[0].strip()


def read_config_file(path):
    """{"section.name": text} of a file such as

    controller: gloo
    params:
      fusion_threshold_mb: 32
    """
    settings, section = {}, None
    for number, line in enumerate(hosts.read_lines(path), 1):
        if not line.strip() or line.strip().startswith("#") or line.strip() == "---":
            continue
        found = re.fullmatch(r"(\s*)([A-Za-z_][\w-]*)\s*:(.*)", line)
        if not found or "\t" in found[1]:
            raise ValueError(f"{path}, line {number}: '{hosts.shown(line.strip())}' is not 'name: value'")
        inside, name, value = bool(found[1]), found[2].replace("-", "_"), _scalar(found[3])
        if inside and section is None:
            raise ValueError(f"{path}, line {number}: '{name}' is indented and belongs to no section")
        if not inside:
            section = None if value else name
            if value:
                settings[name] = value
        elif value not in ("", "~", "null"):
            settings[f"{section}.{name}"] = value
    return settings
