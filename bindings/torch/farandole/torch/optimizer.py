"""DistributedOptimizer: gradients are reduced during the backward pass, and step waits for the reductions."""

import contextlib
import copy
import warnings

import torch

from .. import basics
from ..basics import Adasum, Average, check_adasum, global_process_set
from .adasum_optimizer import Deltas, DistributedAdasum
from .compression import BlockCompressor, Compression
from .gradient_reduction import GradientReductions
from .gradient_scaler import prepare_scalers
from .optimizer_state import put_back
from .versions import notify_once


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none, backward_passes_per_step=1,
                         op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False,
                         process_set=global_process_set, gradients_in_shared_memory=False,
                         overlap_forward=False):  # fmt: skip
    """An optimizer of the same class that averages gradients over ranks before it steps.

    It shares the parameter groups and the state of `optimizer`, so schedulers can be created for either. Every rank
    must wrap the same parameters under the same names. Frozen parameters may be unfrozen at any time. If only some
    ranks have a gradient of a parameter, the others count as zeros. If no rank has one, the gradient stays None.

    `named_parameters`: model.named_parameters().
    `compression`: one of Compression. With int8, int4, float8_e4m3, float8_e5m2 or bfloat16, the optimizer's
    `error_bound` is after each step a bound of the largest error of a reduced gradient.
    `backward_passes_per_step`: the number of backward passes whose gradients are accumulated before a reduction.
    `op`: Average, Sum, Adasum, Min, Max or Product.
    `gradient_predivide_factor`: divides gradients before the sum, and multiplies the average accordingly.
    `groups`: the number of groups of gradients that are reduced as one, or lists of parameters. None chooses groups of
    small gradients by size; 0 reduces each gradient alone.
    `sparse_as_dense`: reduces sparse gradients as dense tensors. They are sparse again after the reduction, without the
    rows that are zero.
    `gradients_in_shared_memory`: keeps gradients in buckets of memory that all ranks of the host map (on a CUDA device:
    symmetric memory of NCCL). Each bucket is reduced in place as one tensor, without packing.

    `overlap_forward`: step() returns while gradients are being reduced, on the CPU. A parameter is updated when the
    next forward pass reads it, and gradients that are needed early overtake the others. The values are the same. The
    optimizer is one of torch.optim other than LBFGS, or one whose class has `steps_each_parameter_alone = True`.
    finish_step() lets all updates take place.

    Wrapping parameters again takes them from the DistributedOptimizer that had them before, which can no longer step.
    ValueError for invalid arguments, on all ranks if ranks have different parameters.
    """
    _check_arguments(optimizer, backward_passes_per_step, op, gradient_predivide_factor, process_set, compression)
    kind = _checked_overlap(optimizer, op) if overlap_forward else GradientReductions
    if num_groups:
        warnings.warn("num_groups has been replaced by groups", DeprecationWarning, stacklevel=2)
        groups = groups if groups is not None else num_groups
    given, names = _names_of(optimizer, named_parameters)
    if op == Adasum and process_set.size() > 1:
        communication = Deltas(names, compression, backward_passes_per_step, process_set)
        members = {**vars(_Distributed), **vars(DistributedAdasum)}
    else:
        communication = kind(
            names, compression, backward_passes_per_step, op, gradient_predivide_factor, groups,
            sparse_as_dense, process_set, gradients_in_shared_memory)  # fmt: skip
        members = {**vars(_Distributed), **({"state": _state_after_the_step} if overlap_forward else {})}
    communication.given_names = given
    options = dict(compression=compression, op=op, gradient_predivide_factor=gradient_predivide_factor, groups=groups,
                   sparse_as_dense=sparse_as_dense, gradients_in_shared_memory=gradients_in_shared_memory,
                   overlap_forward=overlap_forward)  # fmt: skip
    return _wrapper(optimizer, communication, members, options)


def _check_arguments(optimizer, passes, op, predivide, process_set, compression):
    if isinstance(getattr(optimizer, "_communication", None), (GradientReductions, Deltas)):
        raise ValueError(
            "DistributedOptimizer: optimizer is a DistributedOptimizer already; use it as it is, or wrap the optimizer "
            "that it was made of"
        )
    if op == Adasum:
        process_set.group("DistributedOptimizer")
        check_adasum(process_set)
        if isinstance(compression, BlockCompressor):
            raise ValueError(f"DistributedOptimizer: {compression} is for op=Average and op=Sum; leave it out")
    if predivide != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")


def _checked_overlap(optimizer, op):
    # Imported here, because both use internals of PyTorch that no other program needs.
    from .deferred_step import check_optimizer
    from .gradient_overlap import OverlappedReductions

    if op == Adasum:
        raise ValueError(
            "DistributedOptimizer: op=Adasum combines steps and no gradients, so nothing can overlap; leave "
            "overlap_forward out"
        )
    check_optimizer(optimizer)
    return OverlappedReductions


def _wrapper(optimizer, communication, members, options):
    for own in ("__dict__", "__weakref__"):
        del members[own]
    kind = type(optimizer.__class__.__name__, (optimizer.__class__,), members)
    wrapped = kind.__new__(kind)
    # A scheduler of the original has replaced `step` of that instance.
    wrapped.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    wrapped._base_class = optimizer.__class__
    wrapped._wrapped_optimizer = optimizer
    wrapped._communication = communication
    wrapped._options = options
    communication.param_groups = wrapped.param_groups
    communication.parameter_count = sum(len(group["params"]) for group in wrapped.param_groups)
    groups, state = wrapped.param_groups, wrapped.state
    # The wrapper has the hook too, because both share the dict of hooks.
    if hasattr(optimizer, "_optimizer_load_state_dict_post_hooks"):
        optimizer.register_load_state_dict_post_hook(lambda loaded: put_back(loaded, groups, state))
    if communication.defers_steps:
        communication.watch_optimizer(wrapped, optimizer)
    prepare_scalers()
    notify_once(basics.rank())
    return wrapped


def _names_of(optimizer, named_parameters):
    """{parameter: name} as given, and the same for the parameters of the optimizer."""
    if named_parameters is not None:
        named = list(named_parameters)
        if not all(isinstance(pair, tuple) for pair in named):
            raise ValueError(
                "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
                "model.named_parameters()."
            )
    else:
        named = [
            (f"allreduce.noname.{i}.{j}", parameter)
            for i, group in enumerate(optimizer.param_groups)
            for j, parameter in enumerate(group["params"])
        ]
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(
            "Parameter names in named_parameters must be unique. "
            f"Found duplicates: {', '.join(twice)}; use model.named_parameters() of one model"
        )
    by_parameter = {parameter: name for name, parameter in named}
    own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    missing = len(own - by_parameter.keys())
    if missing:
        raise ValueError(
            f"named_parameters was specified, but {missing} of the optimizer's parameters have no name in it; "
            "pass model.named_parameters() of the whole model"
        )
    return by_parameter, {parameter: name for parameter, name in by_parameter.items() if parameter in own}


# ---- Copies ---------------------------------------------------------------------------------------------------------


def _wrap_copy(optimizer, names, passes, options, ranks):
    """Wraps the copy of an optimizer. `names`: of its parameters, in the order of its groups."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    named = list(zip(names, parameters))
    by_name = dict(named)
    if isinstance(options["groups"], list):
        options = {**options, "groups": [[by_name[name] for name in group] for group in options["groups"]]}
    process_set = global_process_set
    if ranks is not None:
        process_set = next((one for one in basics._process_sets.values() if one.ranks == ranks), None)
        if process_set is None:
            raise ValueError(
                f"DistributedOptimizer: no process set has the ranks {ranks} of the optimizer that was pickled; "
                "call add_process_set before loading it"
            )
    return DistributedOptimizer(optimizer, named, backward_passes_per_step=passes, process_set=process_set, **options)


def _state(self):
    self.finish_step()
    return vars(self)["state"]


# The base class sets the attribute, and reads and replaces it in vars(self) too.
_state_after_the_step = property(_state, lambda self, state: vars(self).update(state=state))


class _Distributed:
    """The methods that the new class adds to those of the optimizer's own class."""

    @property
    def _parameter_names(self):
        return self._communication.names

    @property
    def error_bound(self):
        """The bound of the last step's errors: of the largest absolute error of a gradient that was sent compressed."""
        self.finish_step()
        return getattr(self._communication, "error_bound", 0.0)

    def _before_scaler(self):
        """Called before a GradScaler reads the gradients."""
        self._communication.before_scaler()

    def set_backward_passes_per_step(self, passes):
        """Sets the number of backward passes before a reduction."""
        self.finish_step()
        self._communication.passes = passes
        self._communication.start_over()

    def synchronize(self):
        """Waits until all gradients are reduced. Call it to change gradients before step (see skip_synchronize)."""
        self.finish_step()
        self._communication.synchronize()

    def finish_step(self):
        """Lets all updates of the last step take place that overlap_forward has deferred.

        Reading a parameter or its gradient in Python does that by itself. Call it before code in C++ reads parameters.
        """
        self._communication.finish_step()

    @contextlib.contextmanager
    def skip_synchronize(self):
        """A context in which step uses the gradients as they are, because synchronize() was called before."""
        self._communication.should_synchronize = False
        try:
            yield
        finally:
            self._communication.should_synchronize = True

    def remove_hooks(self):
        """Ends the reduction of gradients. step() raises RuntimeError afterwards.

        The wrapped optimizer stays usable and shares its state and groups with this one.
        """
        self.finish_step()
        if self._communication.is_in_flight():
            self._communication.synchronize()
        self._communication.remove_hooks()

    def step(self, closure=None):
        """Waits until all gradients are reduced, and steps. Returns the closure's loss, if there is one.

        HorovodInternalError if a reduction fails. AssertionError if a gradient was changed during its reduction.
        """
        communication = self._communication
        communication.check_hooks("step")
        self.finish_step()
        has_stepped = False
        synchronizes = communication.should_synchronize and not communication.synchronized_for_scaler
        if synchronizes and (closure is None or communication.is_in_flight()):
            if communication.synchronized and communication.is_active:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
                    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code.",
                    stacklevel=2,
                )
            if closure is None and communication.defers_steps:
                has_stepped = communication.step(self, self._base_class)
            else:
                communication.synchronize()
        communication.synchronized = communication.synchronized_for_scaler = False
        # A scheduler of the wrapped optimizer checks whether that one has stepped.
        self._wrapped_optimizer._opt_called = True
        if has_stepped:
            return None
        if closure is None:
            return self._base_class.step(self)

        def reduced_closure():
            loss = closure()
            communication.synchronize()
            return communication.same_loss(loss) if isinstance(self, torch.optim.LBFGS) else loss

        return self._base_class.step(self, reduced_closure if synchronizes else closure)

    # torch wraps `step` of classes without this attribute. The base class's `step` is wrapped already.
    step.hooked = True

    def zero_grad(self, set_to_none=True):
        """Clears the gradients. AssertionError between backward() and step() or synchronize()."""
        if self._communication.is_in_flight():
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        self._communication.synchronized = self._communication.synchronized_for_scaler = False
        self._communication.start_over()  # the accumulated passes are gone
        return self._base_class.zero_grad(self, set_to_none=set_to_none)

    def state_dict(self, *arguments, **options):
        """The state after the last step."""
        self.finish_step()
        return self._base_class.state_dict(self, *arguments, **options)

    def add_param_group(self, group):
        """Adds a group, whose gradients are reduced too."""
        self._base_class.add_param_group(self, group)
        self._communication.adopt_new_parameters()

    def load_state_dict(self, *arguments, **options):
        """Loads a state into the existing groups and state, which schedulers refer to."""
        self.finish_step()
        groups, state = self.param_groups, self.state
        if self._communication.is_in_flight():
            self._communication.synchronize()
        self._communication.start_over()
        self._base_class.load_state_dict(self, *arguments, **options)
        put_back(self, groups, state)

    def _copied(self, base, ranks):
        communication = self._communication
        names = [communication.names[parameter] for group in self.param_groups for parameter in group["params"]]
        groups = getattr(communication, "group_names", None) or self._options["groups"]
        options = {**self._options, "groups": groups}
        return base, names, communication.passes, options, ranks

    def __deepcopy__(self, memo):
        """A separate DistributedOptimizer over copies of the parameters."""
        self.finish_step()
        base = copy.deepcopy(self._wrapped_optimizer, memo)
        process_set = self._communication.process_set
        ranks = None if process_set is global_process_set else process_set.ranks
        copied = memo[id(self)] = _wrap_copy(*self._copied(base, ranks))
        return copied

    def __copy__(self):
        raise TypeError("a DistributedOptimizer cannot share its parameters with a copy; use copy.deepcopy")

    def __reduce_ex__(self, protocol):
        """Pickles the wrapped optimizer and the options. Loading wraps it again, which needs init() first."""
        self.finish_step()
        process_set = self._communication.process_set
        ranks = None if process_set is global_process_set else process_set.ranks
        return _wrap_copy, self._copied(self._wrapped_optimizer, ranks)
