"""horovod.run: a function on several ranks, started from Python."""

from importlib import util as _util

if _util.find_spec("farandole.run"):
    from farandole.run import run  # noqa: F401
else:

    def run(*arguments, **options):
        raise NotImplementedError(
            "this version of farandole starts no functions; put them into a program and start that by "
            "`farandole run -np N python program.py`"
        )
