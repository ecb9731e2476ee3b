"""The error of the generator: the reason why no manifest is printed, and the remedy."""


class WrongCombination(ValueError):
    """Options that exclude each other. The text names the reason and the remedy."""
