"""Fixtures of the tests of `farandole kubernetes logs` and `status`, which need packages that others do not have."""

from live_commands import api, begin  # noqa: F401
