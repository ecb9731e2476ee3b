"""Whether JAX is tracing: whether arrays stand for values that exist only when a compiled program runs."""

import threading

import jax

try:
    from jax.extend.core import get_opaque_trace_state
except ImportError:  # before JAX 0.6
    from jax.core import get_opaque_trace_state


def _state_of_a_new_thread():
    """The state without any trace. This module may be imported while this thread traces a function."""
    states = []
    thread = threading.Thread(target=lambda: states.append(get_opaque_trace_state(convention="flax")))
    thread.start()
    thread.join()
    return states[0]


_NO_TRACE = _state_of_a_new_thread()


def is_traced(arrays):
    """Whether a collective on these arrays belongs to a function that is being traced."""
    if any(isinstance(one, jax.core.Tracer) for one in arrays):
        return True
    if get_opaque_trace_state(convention="flax") == _NO_TRACE:
        return False
    # Constants in a function that is being compiled belong to it. Under a derivative alone they are what they are.
    return isinstance(jax.numpy.zeros(()), jax.core.Tracer)
