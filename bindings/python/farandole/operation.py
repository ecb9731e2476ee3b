"""Operation: the arguments of one named operation for the native module."""

import collections

from . import _native

# The native module lists the fields, and the defaults of all fields that follow `name`. input and output are addresses,
# output_elements is the size of the memory at output, splits the rows for each rank or None, place as Place.to_python.
Operation = collections.namedtuple("Operation", _native.OPERATION_FIELDS, defaults=_native.OPERATION_DEFAULTS)
