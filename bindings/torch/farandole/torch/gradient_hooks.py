"""Hooks on parameters: which optimizer reduces which gradients, and the names that match them between ranks."""

import weakref

from .. import core

NO_LONGER = (
    "{operation}: this DistributedOptimizer reduces no gradients any more, because {reason}; use the optimizer that "
    "was wrapped, or the DistributedOptimizer that was made last"
)

_watchers = {}  # {id of a parameter: weak reference to the GradientHooks that watches it}
_taken = {}  # {(id of the process set, name): the highest number with which an optimizer of this process uses it}
core.on_shutdown(_taken.clear)


def watcher_of(parameter):
    """The GradientHooks that watches a parameter, or None."""
    reference = _watchers.get(id(parameter))
    watcher = reference() if reference is not None else None
    return watcher if watcher is not None and parameter in watcher.hooks else None


class GradientHooks:
    """Watches the gradients of an optimizer's parameters. A parameter has at most one watcher.

    Frozen parameters are watched too, because they may be unfrozen later.
    """

    defers_steps = False

    def __init__(self, names, passes, process_set):
        self.names = names  # {parameter: name}, of all the optimizer's parameters
        self.given_names = names  # of named_parameters, also for parameters that the optimizer does not have yet
        self.passes = passes
        self.passes_left = {}
        self.process_set = process_set
        self.hooks = {}
        self.sent_names = {}  # {parameter: name}, with a number if several optimizers use the name
        self.param_groups = None  # the optimizer's list
        self.parameter_count = 0
        self.removed_because = None

    # ---- Watching ----

    def watch(self, parameters):
        """Adds hooks. A DistributedOptimizer that watched one of the parameters before loses it."""
        for parameter in parameters:
            if not (parameter.is_floating_point() or parameter.is_complex()):
                continue  # it never has a gradient
            watcher = watcher_of(parameter)
            if watcher is not None:
                watcher.give_up([parameter], "a later DistributedOptimizer has taken over its parameters")
            self.hooks[parameter] = _hook(parameter, self._on_gradient)
            self.passes_left[parameter] = self.passes
            _watchers[id(parameter)] = weakref.ref(self)

    def check_free(self, parameters):
        """ValueError if another optimizer is in the middle of a step with one of the parameters."""
        for parameter in parameters:
            watcher = watcher_of(parameter)
            if watcher is not None:
                watcher.finish_step()
            if watcher is not None and watcher.is_in_flight():
                raise ValueError(
                    "DistributedOptimizer: another DistributedOptimizer is reducing the gradient of "
                    f"{self.names[parameter]}; call its step() or synchronize() before wrapping the parameter again"
                )

    def give_up(self, parameters, reason):
        """Removes the hooks of some parameters and frees their names."""
        for parameter in parameters:
            self.hooks.pop(parameter).remove()
            self.passes_left.pop(parameter)
            _watchers.pop(id(parameter), None)
        self.removed_because = reason
        self._free_names(parameters)

    def remove_hooks(self):
        self.give_up(list(self.hooks), "its hooks were removed")

    def check_hooks(self, operation):
        if self.removed_because is not None:
            raise RuntimeError(NO_LONGER.format(operation=operation, reason=self.removed_because))

    def adopt_new_parameters(self):
        """Watches parameters that were added to the optimizer's groups, or to those of the wrapped optimizer."""
        count = sum(len(group["params"]) for group in self.param_groups or ())
        if count == self.parameter_count:
            return
        self.parameter_count = count
        used = set(self.names.values())
        added = []
        for number, group in enumerate(self.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter not in self.names:
                    self.names[parameter] = self._name_of(parameter, group, number, index, used)
                    used.add(self.names[parameter])
                    added.append(parameter)
        self.add(added)

    def add(self, parameters):
        self.watch(parameters)

    def _name_of(self, parameter, group, number, index, used):
        """The name that the program gave, if any; else the parameter's index in the groups."""
        given = self.given_names.get(parameter)
        if given is None and len(group.get("param_names", ())) == len(group["params"]):
            given = group["param_names"][index]
        return given if given is not None and given not in used else f"allreduce.noname.{number}.{index}"

    # ---- Names ----

    def _unnumbered(self):
        return [parameter for parameter in self.hooks if parameter not in self.sent_names]

    def next_number(self):
        """A number above all that optimizers of this process use with one of the names.

        Models of one class use the same parameter names, and their gradients may be in flight at the same time. The
        number must be equal on all ranks. Ranks therefore agree on it at the first synchronize(), which all ranks call
        in the same order, and not when an optimizer is created, which one rank may do alone.
        """
        place = self.process_set.process_set_id
        return 1 + max((_taken.get((place, self.names[parameter]), 0) for parameter in self._unnumbered()), default=0)

    def number_names(self, number):
        """Gives each unnamed parameter a name that is unique among all optimizers of this process."""
        place = self.process_set.process_set_id
        for parameter in self._unnumbered():
            _taken[place, self.names[parameter]] = number
            self.sent_names[parameter] = self.names[parameter] + ("" if number == 1 else f"@{number}")

    def _free_names(self, parameters):
        place = self.process_set.process_set_id
        for parameter in parameters:
            sent = self.sent_names.pop(parameter, None)
            number = 0 if sent is None else int(sent[len(self.names[parameter]) + 1 :] or 1)
            if number and _taken.get((place, self.names[parameter])) == number:
                del _taken[place, self.names[parameter]]

    # ---- Passes ----

    def start_over(self):
        for parameter in self.passes_left:
            self.passes_left[parameter] = self.passes

    def count_pass(self, parameter):
        """Counts a backward pass, and returns the number of passes that the parameter still needs."""
        left = self.passes_left[parameter] - 1
        if left < 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step to accumulate gradients locally."
            )
        self.passes_left[parameter] = left
        return left

    def _on_gradient(self, parameter):
        raise NotImplementedError

    def finish_step(self):
        """Lets all updates of the last step take place. See OverlappedReductions."""

    def is_in_flight(self):
        raise NotImplementedError


def _hook(parameter, method):
    """Adds a hook, also to a frozen parameter. It runs after the parameter has been unfrozen.

    PyTorch's references from a parameter to its hooks are not seen by the garbage collector. The hook therefore refers
    weakly to the watcher, which refers to the parameters: a model and its optimizer are freed when they are dropped.
    """
    reference = weakref.WeakMethod(method)

    def function(parameter):
        watching = reference()
        if watching is not None:
            watching(parameter)

    if parameter.requires_grad:
        return parameter.register_post_accumulate_grad_hook(function)
    parameter.requires_grad_(True)
    try:
        return parameter.register_post_accumulate_grad_hook(function)
    finally:
        parameter.requires_grad_(False)
