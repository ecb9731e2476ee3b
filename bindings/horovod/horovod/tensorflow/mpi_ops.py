"""The operations, and the basics with them."""

from farandole.basics import *  # noqa: F403
from farandole.errors import HorovodInternalError  # noqa: F401
from farandole.tensorflow.ops import *  # noqa: F403
