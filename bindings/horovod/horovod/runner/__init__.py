"""horovod.run, which calls a function on several ranks, and the command horovodrun."""

from farandole.run import run  # noqa: F401
