"""The exceptions that programs for Horovod catch."""

from farandole.errors import HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt  # noqa: F401
