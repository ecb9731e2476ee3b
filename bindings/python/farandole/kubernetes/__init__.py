"""The earlier import path of farandole.integrations.kubernetes."""

from .._moved import stand_for

stand_for(__name__, "farandole.integrations.kubernetes")
