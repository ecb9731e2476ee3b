"""Modules that all frameworks share. `import horovod` loads them: programs name them without an import of their own."""

from . import basics, elastic, exceptions, process_sets, util  # noqa: F401
