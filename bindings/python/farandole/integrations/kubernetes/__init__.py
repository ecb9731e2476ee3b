"""Kubernetes manifests for jobs of farandole, and their logs and state: the command `farandole kubernetes`.

`generate(words)` gives what `farandole kubernetes gen ...` prints. Nothing here talks to a cluster but logs and status,
which run kubectl. PyYAML is all that is needed: `pip install "farandole[kubernetes]"`.
"""

from .errors import WrongCombination


def generate(words):
    """The manifest that `farandole kubernetes gen WORDS` prints; WrongCombination says why there is none."""
    from .generator import of_words

    return of_words(list(words))


__all__ = ["WrongCombination", "generate"]
