"""Operation: one named operation as the native module takes it."""

import collections

from . import _native

# The native module lists the fields and the defaults of all that follow `name`. input, output: addresses;
# output_elements: the size of the memory at output; splits: rows for each rank, or None; place: as Place.to_python.
Operation = collections.namedtuple("Operation", _native.OPERATION_FIELDS, defaults=_native.OPERATION_DEFAULTS)
