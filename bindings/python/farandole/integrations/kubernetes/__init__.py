"""Kubernetes manifests for jobs of farandole, and their logs and state: the command `farandole kubernetes`.

`generate(words)` returns the output of `farandole kubernetes gen ...`. Only logs, status and topology access a cluster,
through kubectl. PyYAML is the only requirement: `pip install "farandole[kubernetes]"`.
"""

from .errors import WrongCombination


def generate(words):
    """The manifest that `farandole kubernetes gen WORDS` prints, as text.

    WrongCombination, with the reason, if there is none.
    """
    from .generator import of_words

    return of_words(list(words))


__all__ = ["WrongCombination", "generate"]
