"""Lists of hosts as programs for Horovod write them: "a:4,b:4", and files with lines such as "a slots=4"."""

import re
import socket

_LIMIT_BYTES = 1 << 20  # of a small file
_NAME = r"[\w.%@-]+"
_SLOTS = r"([0-9]{1,9})"


class HostsError(ValueError):
    """A malformed list, or a list with hosts other than this one, which `hosts` contains as (name, slots)."""

    def __init__(self, text, hosts=()):
        super().__init__(text)
        self.hosts = list(hosts)


def shown(text, limit=200):
    """The text for an error: at most `limit` characters, control characters and undecodable bytes as \\x1b."""
    text = text if len(text) <= limit else text[:limit] + "..."
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def read_lines(path):
    """The lines of a small text file. Bytes that are not UTF-8 become \\xff. ValueError if the file is not small."""
    with open(path, "rb") as file:
        data = file.read(_LIMIT_BYTES + 1)
    if len(data) > _LIMIT_BYTES:
        raise ValueError(f"{path} has more than {_LIMIT_BYTES >> 20} MiB")
    return data.decode("utf-8", "backslashreplace").splitlines()


def parse_hosts(text):
    """[(host, slots)] of "a:4,b:4". A host without a number has one slot. HostsError for a malformed list."""
    hosts = []
    for word in filter(None, (one.strip() for one in text.split(","))):
        found = re.fullmatch(rf"({_NAME}|\[[\w.%:]+\])(?::{_SLOTS})?", word)
        if not found or int(found[2] or 1) == 0:
            raise HostsError(f"'{shown(word)}' in the hosts '{shown(text)}' is not host:slots")
        hosts.append((found[1].strip("[]"), int(found[2] or 1)))
    if not hosts:
        raise HostsError(f"the list of hosts '{shown(text)}' is empty")
    return hosts


def parse_hostfile(path):
    """[(host, slots)] of a file with lines "host", "host slots=4" or "host:4"; # begins a comment.

    HostsError as above.
    """
    hosts = []
    try:
        lines = read_lines(path)
    except ValueError as error:
        raise HostsError(f"{error} and is no list of hosts") from None
    for number, line in enumerate(lines, 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        found = re.fullmatch(rf"({_NAME}|\[?[\w.%:]+?\]?)(?:\s+slots\s*=\s*{_SLOTS}|:{_SLOTS})?", line)
        if not found:
            raise HostsError(f"{path}, line {number}: '{shown(line)}' is not 'host slots=4'")
        hosts.append((found[1].strip("[]"), int(found[2] or found[3] or 1)))
    if not hosts:
        raise HostsError(f"{path} names no host")
    return hosts


def is_this_host(name):
    return name in ("localhost", "127.0.0.1", "::1") or name in (socket.gethostname(), socket.getfqdn())


def local_slots(hosts=None, hostfile=None):
    """The number of ranks that the list allows; None without a list. HostsError if it names another host."""
    if not hosts and not hostfile:
        return None
    named = parse_hosts(hosts) if hosts else parse_hostfile(hostfile)
    others = [name for name, _ in named if not is_this_host(name)]
    if others:
        raise HostsError(f"{', '.join(others)} {'is' if len(others) == 1 else 'are'} not this host "
                         f"({socket.gethostname()})", named)  # fmt: skip
    return sum(slots for _, slots in named)
