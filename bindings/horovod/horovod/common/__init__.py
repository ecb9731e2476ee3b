"""Modules that all frameworks share. They are loaded together: programs name one after the import of another."""

from . import basics, elastic, exceptions, process_sets, util  # noqa: F401
