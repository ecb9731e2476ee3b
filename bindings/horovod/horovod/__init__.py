"""horovod: the modules that programs written for Horovod import, made of farandole's.

`horovod.__version__` is the version of Horovod whose interface this is. `horovod.farandole.__version__` is farandole's
own.
"""

from ._alone import refuse_beside_horovod

refuse_beside_horovod()

import farandole  # noqa: E402

from . import common, elastic  # noqa: E402
from .runner import run  # noqa: E402
from .version import __version__  # noqa: E402

__all__ = ["__version__", "common", "elastic", "farandole", "run"]
