"""Compression of arrays before they are sent."""

import jax.numpy as jnp


class _Cast:
    """Sends arrays of wider floating types as `dtype`; None sends all as they are."""

    def __init__(self, dtype):
        self._dtype = dtype

    def compress(self, array):
        """The array to send, and what decompress() needs."""
        if self._dtype is None or not jnp.issubdtype(array.dtype, jnp.floating):
            return array, None
        return array.astype(self._dtype), array.dtype

    def decompress(self, array, dtype):
        """The result in the type of the array that was compressed."""
        return array if dtype is None else array.astype(dtype)


class Compression:
    """none, fp16 and bf16: 16-bit types halve what float32 sends. Integers are sent as they are."""

    none = _Cast(None)
    fp16 = _Cast(jnp.float16)
    bf16 = _Cast(jnp.bfloat16)
