"""Values of Kubernetes: names, quantities and durations, and checks of them."""

import re
from fractions import Fraction

_UNITS = {
    "": 1,
    "m": Fraction(1, 1000),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(Ki|Mi|Gi|Ti|Pi|Ei|[mkMGTPE]?)\Z")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
_DURATION = re.compile(r"(\d+h)?(\d+m)?(\d+s)?\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def quantity(text):
    """The amount of a quantity such as 500m, 4, 1.5Gi or 2Ti; None for anything else."""
    found = _QUANTITY.match(str(text))
    return Fraction(found.group(1)) * _UNITS[found.group(2)] if found else None


def fault_of_size(text):
    """The error in a quantity of bytes that is too small to be meant; None if it is valid."""
    if quantity(text) >= 2**20:
        return None
    return f"is less than 1 MiB; {f'write {text}Gi for GiB' if text.isdigit() else 'give a size such as 16Gi'}"


def seconds(text):
    """The seconds of 90m, 12h, 1h30m; None for anything else."""
    found = _DURATION.match(text)
    if not text or not found:
        return None
    return sum(int(part[:-1]) * unit for part, unit in zip(found.groups(), (3600, 60, 1)) if part)


def fault_of_name(name, longest=63):
    """The error in a name that becomes part of a host name; None if it is valid."""
    if len(name) > longest:
        return f"has {len(name)} characters and may have {longest}"
    if not _LABEL.match(name):
        return "may only have small letters, digits and '-', and begins and ends with a letter or digit"
    return None


def fault_of_service_name(name, longest=63):
    """The same for a name that a Service or an object of an operator has too: it begins with a letter."""
    if name[:1].isdigit():
        return "begins with a digit, which no name of a Service may do"
    return fault_of_name(name, longest)


def is_key(text):
    return bool(_KEY.match(text))


def is_label_value(text):
    return isinstance(text, str) and bool(_LABEL_VALUE.match(text))


def is_variable(text):
    return bool(_VARIABLE.match(text))
