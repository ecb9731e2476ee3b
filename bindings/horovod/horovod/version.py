"""The version of Horovod whose interface this package has."""

__version__ = "0.28.1"
