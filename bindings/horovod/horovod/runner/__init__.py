"""horovod.run: a function on several ranks, started from Python; and the command horovodrun."""

from farandole.run import run  # noqa: F401
