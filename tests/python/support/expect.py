"""Assertions about errors: their class, and the content of their text."""

import pytest


def raises(kind, text, action, *arguments, **options):
    with pytest.raises(kind, match=text) as caught:
        action(*arguments, **options)
    return caught.value


def fails(kind, *parts, action):
    with pytest.raises(kind) as caught:
        action()
    text = str(caught.value)
    for part in parts:
        assert part in text, f"{part!r} is not in {text!r}"
    return caught.value
