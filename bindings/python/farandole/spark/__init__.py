"""The short import path of farandole.integrations.spark."""

from .._moved import stand_for

stand_for(__name__, "farandole.integrations.spark")
