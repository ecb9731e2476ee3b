"""The one error of the generator: why no manifest is printed, and what to do."""


class WrongCombination(ValueError):
    """Options that cannot work together; the text says why and what to do instead."""
