"""The earlier import path of farandole.integrations.ray."""

from .._moved import stand_for

stand_for(__name__, "farandole.integrations.ray")
