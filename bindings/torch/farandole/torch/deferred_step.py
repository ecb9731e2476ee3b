"""A step whose updates take place when the next forward pass needs them.

Each bucket of gradients has its own update: it waits for the reduction of the bucket and changes the parameters of the
bucket alone. The first function that reads one of these parameters or gradients runs it (see deferred_tensors).
"""

import contextlib
import importlib
import threading

import torch
from torch._functorch import pyfunctorch
from torch.utils import _python_dispatch

from .. import errors
from . import deferred_tensors, gradient_buckets, ops

_of_all_optimizers = importlib.import_module("torch.optim.optimizer")  # torch.optim deletes its name


def check_optimizer(optimizer):
    """ValueError if the class of the optimizer may not update each parameter by itself."""
    kind = type(optimizer)
    alone = getattr(kind, "steps_each_parameter_alone", None)
    if alone is None:
        alone = kind.step.__module__.startswith("torch.optim.") and not isinstance(optimizer, torch.optim.LBFGS)
    if not alone:
        raise ValueError(
            f"DistributedOptimizer: overlap_forward needs an optimizer that updates each parameter by itself, which "
            f"{kind.__name__} may not do; leave overlap_forward out, or set {kind.__name__}.steps_each_parameter_alone "
            "= True if it does"
        )


def has_step_hooks(optimizer):
    """Whether functions are registered that expect a step to be one call."""
    of_all = (getattr(_of_all_optimizers, f"_global_optimizer_{when}_hooks", None) for when in ("pre", "post"))
    of_one = (getattr(optimizer, f"_optimizer_step_{when}_hooks", None) for when in ("pre", "post"))
    return any(of_all) or any(of_one)


# A scheduler has wrapped `step` of the instance.
_NOT_OF_A_PART = ("step", "param_groups", "_communication", "_wrapped_optimizer")


def _copied(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


class _Update:
    """The update of one bucket: the gradients that it takes, and the functions that wait for their reductions."""

    def __init__(self, parameters, in_flight, arrive):
        self.gradients = {parameter: parameter.grad for parameter in parameters}
        self.in_flight = in_flight
        self.is_waiting = True
        self._failure = None
        for tensor in (*self.gradients, *self.gradients.values()):
            deferred_tensors.defer(tensor, arrive)

    def wait(self):
        """Waits for all reductions, and raises the first error. After an interrupt the next call waits for the rest."""
        while self.in_flight:
            failure = gradient_buckets.wait_for(self.in_flight[:1])
            del self.in_flight[0]
            self._failure = self._failure or failure
        if self._failure is not None:
            raise self._failure

    def restore(self):
        for tensor in (*self.gradients, *self.gradients.values()):
            deferred_tensors.restore(tensor)

    @contextlib.contextmanager
    def own_gradients(self):
        """A context in which the parameters have the gradients of this step. zero_grad() may have removed them."""
        present = {parameter: parameter.grad for parameter in self.gradients}
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient
        try:
            yield
        finally:
            for parameter, gradient in self.gradients.items():
                if present[parameter] is not gradient:
                    parameter.grad = present[parameter]


class DeferredStep:
    """The updates of one optimizer's last step that have not taken place. Any thread may run them."""

    def __init__(self, optimizer, base_class, raise_if_spoiled):
        # Without a reference to the optimizer, which the program may drop: see OverlappedReductions.
        self._fields = {key: value for key, value in vars(optimizer).items() if key not in _NOT_OF_A_PART}
        self._base_class = base_class
        self._raise_if_spoiled = raise_if_spoiled
        self._updates = []
        self._lock = threading.RLock()
        # Schedulers change the options of groups after a step.
        self._options = [
            {key: _copied(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        self._group_of = {
            parameter: number for number, group in enumerate(optimizer.param_groups) for parameter in group["params"]
        }

    def accepts(self, parameters):
        """Whether the update of these parameters can take place later."""
        return all(
            parameter in self._group_of
            and not self._options[self._group_of[parameter]].get("differentiable")
            and deferred_tensors.can_defer(parameter)
            and parameter.grad is not None
            and deferred_tensors.can_defer(parameter.grad)
            for parameter in parameters
        )

    def add(self, parameters, in_flight):
        """Defers the update of a bucket."""
        update = None

        def arrive():
            self._run(update)

        update = _Update(parameters, in_flight, arrive)
        self._updates.append(update)

    def update_others(self):
        """Updates the parameters that no deferred update has."""
        deferred = {parameter for update in self._updates for parameter in update.gradients}
        self._step([parameter for parameter in self._group_of if parameter not in deferred])

    def is_open(self):
        return bool(self._updates)

    def finish(self):
        """Runs all updates."""
        with self._lock:
            while self._updates:
                self._run(self._updates[0])

    def abandon(self):
        """Drops all updates. Returns the handles of their reductions."""
        with self._lock:
            handles = [wait for update in self._updates for wait, _ in update.in_flight]
            for update in self._updates:
                update.restore()
            self._updates.clear()
        return handles

    def drop(self):
        """Drops all updates after a failure. The reductions that are in flight use the gradients until they end."""
        for handle in self.abandon():
            with contextlib.suppress(Exception):
                ops.synchronize(handle)

    def _run(self, update):
        with self._lock:
            if update not in self._updates:
                return  # another thread has run it
            self._updates.remove(update)
            try:
                with _outside_of_the_program(), update.own_gradients():
                    update.wait()
                    self._raise_if_spoiled()
                    update.is_waiting = False
                    self._step(update.gradients)
            except BaseException as error:
                if update.is_waiting and not isinstance(error, Exception):
                    self._updates.append(update)  # an interrupt of the wait: the next reader waits again
                    raise
                self._name_lost(update, error)
                self.drop()
                update.restore()
                raise
            update.restore()  # last, so that other threads wait for the lock until then

    def _name_lost(self, update, error):
        """Adds to the error how many parameters keep their values."""
        lost = sum(len(one.gradients) for one in (update, *self._updates))
        if isinstance(error, errors.Error):
            error.text += (
                f"; with overlap_forward, {lost} of {len(self._group_of)} parameters keep their values from before the "
                "last step, and the others have changed: restore a commit or a checkpoint"
            )

    def _step(self, parameters):
        """Calls the step of the optimizer's own class for some parameters, with the options of this step."""
        groups = [{**options, "params": []} for options in self._options]
        for parameter in parameters:
            groups[self._group_of[parameter]]["params"].append(parameter)
        part = object.__new__(self._base_class)
        part.__dict__.update(self._fields)
        part.param_groups = [group for group in groups if group["params"]]
        step = self._base_class.step
        if part.param_groups:
            # Without the function around it that calls hooks: one may have been registered since.
            (step.__wrapped__ if getattr(step, "hooked", False) else step)(part)


@contextlib.contextmanager
def _outside_of_the_program():
    """A context without the modes of the function that needs an update."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(torch._C.DisableTorchFunction())
        if torch._C._functorch.peek_interpreter_stack() is not None:  # within a function of torch.func
            stack.enter_context(pyfunctorch.temporarily_clear_interpreter_stack())
        if _python_dispatch._get_current_dispatch_mode() is not None:
            stack.enter_context(_python_dispatch._disable_current_modes())
        yield
