"""DistributedOptimizer: gradients are reduced while backward is still running, and step waits for them."""

import collections
import contextlib
import sys
import warnings

import torch

from .. import core
from ..basics import Adasum, Average, Sum, check_adasum, global_process_set
from ..elastic_door import is_elastic
from . import ops
from .adasum_optimizer import Deltas, DistributedAdasum
from .compression import Compression
from .state import broadcast_object
from .tensors import catch_up, empty


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none, backward_passes_per_step=1,
                         op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False,
                         process_set=global_process_set, gradients_in_shared_memory=False):  # fmt: skip
    """An optimizer of the same class that averages gradients over ranks before it steps.

    It shares the parameter groups of `optimizer` and takes over its state. Every rank must wrap the same parameters under
    the same names. named_parameters: model.named_parameters(). groups: how many groups of gradients are reduced as one,
    or the groups themselves as lists of parameters. gradients_in_shared_memory: gradients are kept in buckets of memory
    that all ranks of the host map (on a CUDA device: of the device's, which NCCL knows), and each bucket is reduced there as one tensor,
    without being packed or unpacked.
    """
    if op == Adasum:
        process_set.group("DistributedOptimizer")
        check_adasum(process_set)
    adds_deltas = op == Adasum and process_set.size() > 1
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if num_groups:
        warnings.warn("num_groups has been replaced by groups", DeprecationWarning, stacklevel=2)
        groups = groups if groups is not None else num_groups

    members = dict(vars(_Distributed), **(vars(DistributedAdasum) if adds_deltas else {}))
    for own in ("__dict__", "__weakref__"):
        del members[own]
    kind = type(optimizer.__class__.__name__, (optimizer.__class__,), members)
    wrapped = kind.__new__(kind)
    # A scheduler that was made earlier has put its own `step` into the instance; it belongs to the old one.
    wrapped.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    wrapped._base_class = optimizer.__class__
    wrapped._wrapped_optimizer = optimizer
    names = _unlike_other_optimizers(_names_of(wrapped, named_parameters), process_set)
    if adds_deltas:
        wrapped._communication = Deltas(names, compression, backward_passes_per_step, process_set)
        return wrapped
    wrapped._communication = _Communication(
        names, compression, backward_passes_per_step, op, gradient_predivide_factor, groups,
        sparse_as_dense, process_set, gradients_in_shared_memory)  # fmt: skip
    return wrapped


def _names_of(optimizer, named_parameters):
    """{parameter: name} of all that the optimizer has."""
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
    return {parameter: name for parameter, name in by_parameter.items() if parameter in own}


_taken = collections.Counter()  # (process set, name): by how many optimizers so far
core.on_shutdown(_taken.clear)


def _unlike_other_optimizers(names, process_set):
    """Two models have the same names for their parameters when they are of one class, and their gradients may be on their
    way together: later optimizers number theirs. Ranks make their optimizers in one order, so they number alike."""
    keys = [(process_set.process_set_id, name) for name in names.values()]
    number = max((_taken[key] for key in keys), default=0)
    _taken.update(keys)
    return names if number == 0 else {parameter: f"{name}@{number + 1}" for parameter, name in names.items()}


class _Bucket:
    """Parameters whose gradients are reduced as one, and how far they are in this step."""

    def __init__(self, parameters, priority):
        self.parameters = parameters
        self.priority = priority
        self.ready = set()
        self.streams = []  # on which gradients were made, where there are several of them
        self.handle = None  # of the reduction in flight
        self.finish = None


SHARED_BUCKET_BYTES = 25 << 20
_ALIGNMENT = 64  # of each gradient in its bucket, in bytes


class _SharedBucket(_Bucket):
    """Parameters of one type and device whose gradients lie side by side: on the CPU in memory that all ranks of the
    host map, on CUDA in memory that NCCL knows where it can."""

    def __init__(self, parameters, priority, process_set):
        super().__init__(parameters, priority)
        dtype, device = parameters[0].dtype, parameters[0].device
        starts, count = [], 0
        for parameter in parameters:
            starts.append(count)
            step = _ALIGNMENT // dtype.itemsize
            count += (parameter.numel() + step - 1) // step * step
        count = max(count, 1)
        # Who comes later to an elastic job would take memory together with those who have theirs.
        alone = device.type == "cuda" and is_elastic()
        self.flat = (
            torch.zeros(count, dtype=dtype, device=device)
            if alone
            else empty(count, dtype=dtype, device=device, process_set=process_set)
        )
        self.views = {
            parameter: self.flat.as_strided(parameter.shape, _dense_strides(parameter), start)
            for parameter, start in zip(parameters, starts)
        }

    def take_in(self, parameter):
        """The gradient is in the bucket from now on: autograd adds to it there until it is set to None."""
        view, gradient = self.views[parameter], parameter.grad
        if gradient is view:
            return
        if gradient is not None and gradient.is_sparse:
            raise ValueError(
                "sparse gradients cannot lie in shared memory; use sparse_as_dense=True, or gradients_in_shared_memory=False"
            )
        with torch.no_grad():
            view.zero_() if gradient is None else view.copy_(gradient)
        parameter.grad = view


def _dense_strides(parameter):
    return torch.empty_like(parameter, device="meta").stride()


def _in_shared_buckets(groups):
    """Lists of parameters that can lie in one bucket each, and those that must go as they are."""
    shared, others = [], []
    for group in groups:
        of_kind = {}
        for parameter in group:
            if parameter.device.type in ("cpu", "cuda"):
                of_kind.setdefault((parameter.dtype, parameter.device), []).append(parameter)
            else:
                others.append([parameter])
        shared += of_kind.values()
    return shared, others


class _Communication:
    """What a DistributedOptimizer adds to its optimizer: hooks on gradients and the reductions they start."""

    def __init__(self, names, compression, passes, op, predivide, groups, sparse_as_dense, process_set,
                 shared):  # fmt: skip
        if shared and compression is not Compression.none:
            raise ValueError("gradients_in_shared_memory takes no compression: gradients are reduced where they are")
        self.names = names
        self.compression = compression
        self.passes = passes
        self.op = op
        self.prescale = 1.0 / predivide if op == Average else 1.0
        self.postscale = predivide if op == Average else 1.0
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        if process_set.included() is None:
            process_set.group("DistributedOptimizer")  # says what is missing
        # An elastic job of one rank may have more of them later.
        self.is_active = process_set.included() and (process_set.size() > 1 or is_elastic())
        self.passes_left = {}
        self.bucket_of = {}
        self.buckets = []
        self.synchronized = False
        self.synchronized_for_scaler = False
        self.should_synchronize = True
        self.hooks = []
        if self.is_active:
            parameters = [p for p in names if p.requires_grad]
            chosen = self._of_size(parameters) if shared and not groups else self._grouped(parameters, groups)
            in_buckets, others = _in_shared_buckets(chosen) if shared else ([], chosen)
            for members in reversed(in_buckets):  # early parameters first, as in all watch()es
                self.watch(members, lambda *given: _SharedBucket(*given, process_set))
            for members in others:
                self.watch(members)

    # ---- Which gradients go together ----

    def _grouped(self, parameters, groups):
        """Lists of parameters. Rank 0's choice holds for all, so that a group means the same everywhere."""
        if groups is None or groups == 0:
            return [[parameter] for parameter in parameters]
        if isinstance(groups, int):
            if groups < 0:
                raise ValueError("groups should be a non-negative integer or a list of lists of torch.Tensor")
            return self._split(parameters, groups)
        if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
            raise ValueError("groups should be a non-negative integer or a list of lists of torch.Tensor")
        chosen = [parameter for group in groups for parameter in group]
        if len({id(parameter) for parameter in chosen}) < len(chosen):
            raise ValueError("A parameter can only appear once in groups.")
        known = {id(parameter) for parameter in parameters}
        if not all(id(parameter) in known for parameter in chosen):
            raise ValueError("groups has a tensor that is no parameter of this optimizer, or needs no gradient")
        inside = {id(parameter) for parameter in chosen}
        return [list(group) for group in groups] + [[one] for one in parameters if id(one) not in inside]

    def _split(self, parameters, count):
        """`count` groups of neighbours, in the order of rank 0."""
        ordered = self._as_first_rank_has_them(parameters)
        count = min(count, len(ordered)) or 1
        size, more = divmod(len(ordered), count)
        ends = [size * (i + 1) + min(i + 1, more) for i in range(count)]
        return [ordered[start:end] for start, end in zip([0, *ends], ends)]

    def _as_first_rank_has_them(self, parameters):
        by_name = {self.names[parameter]: parameter for parameter in parameters}
        root = self.process_set.ranks[0]
        order = broadcast_object(list(by_name), root, "optimizer_groups", self.process_set)
        return [by_name[name] for name in order]

    def _of_size(self, parameters):
        """Buckets of neighbours, the last parameters first: their gradients are there first."""
        buckets, left = [], 0
        for parameter in reversed(self._as_first_rank_has_them(parameters)):
            bytes_here = parameter.numel() * parameter.element_size()
            if not buckets or bytes_here > left:
                buckets.append([])
                left = SHARED_BUCKET_BYTES
            buckets[-1].append(parameter)
            left -= bytes_here
        return buckets

    def watch(self, parameters, kind=_Bucket):
        bucket = kind(parameters, -len(self.buckets))  # the next forward needs early parameters first
        self.buckets.append(bucket)
        for parameter in parameters:
            self.bucket_of[parameter] = bucket
            self.passes_left[parameter] = self.passes
            self.hooks.append(parameter.register_post_accumulate_grad_hook(self._gradient_is_there))

    # ---- During backward ----

    def _gradient_is_there(self, parameter):
        bucket = self.bucket_of[parameter]
        if isinstance(bucket, _SharedBucket) and bucket.handle is None:
            self._make_dense(parameter)
            bucket.take_in(parameter)
        if bucket.handle is not None or self.passes_left[parameter] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step to accumulate gradients locally."
            )
        self.synchronized = self.synchronized_for_scaler = False
        self.passes_left[parameter] -= 1
        if len(bucket.parameters) > 1 and parameter.is_cuda:
            bucket.streams.append(torch.cuda.current_stream(parameter.device))
        if self.passes_left[parameter] == 0:
            bucket.ready.add(parameter)
            if len(bucket.ready) == len(bucket.parameters):
                self._reduce(bucket)

    def _reduce(self, bucket):
        """Starts the reduction of a bucket."""
        if bucket.streams:  # autograd works where the forward pass did: a bucket's gradients may be on several
            catch_up(torch.cuda.current_stream(bucket.streams[-1].device), *bucket.streams)
        if isinstance(bucket, _SharedBucket):
            return self._reduce_in_place(bucket)
        for parameter in bucket.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._make_dense(parameter)
        if any(parameter.grad.is_sparse for parameter in bucket.parameters):
            return self._reduce_sparse(bucket)
        compressed = [self.compression.compress(parameter.grad) for parameter in bucket.parameters]
        buffers = [tensor.contiguous() for tensor, _ in compressed]
        contexts = [ctx for _, ctx in compressed]
        names = [f"allreduce.{self.names[parameter]}" for parameter in bucket.parameters]
        bucket.handle = ops.submit_allreduce(
            buffers, buffers, names, self.process_set.group("DistributedOptimizer"), self.op, self.prescale, self.postscale,
            bucket.priority)  # fmt: skip

        def finish():
            reduced = ops.synchronize(bucket.handle)
            with torch.no_grad():
                for parameter, tensor, ctx in zip(bucket.parameters, reduced, contexts):
                    tensor = self.compression.decompress(tensor, ctx)
                    if tensor is not parameter.grad:
                        parameter.grad.copy_(tensor)

        bucket.finish = finish

    def _make_dense(self, parameter):
        if self.sparse_as_dense and parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()

    def _reduce_in_place(self, bucket):
        for parameter in bucket.parameters:
            self._make_dense(parameter)
            bucket.take_in(parameter)
        name = f"allreduce.{self.names[bucket.parameters[0]]}+{len(bucket.parameters) - 1}"
        bucket.handle = ops.submit_allreduce(
            [bucket.flat], [bucket.flat], [name], self.process_set.group("DistributedOptimizer"), self.op, self.prescale,
            self.postscale, bucket.priority)  # fmt: skip
        bucket.finish = lambda: ops.synchronize(bucket.handle)

    def _reduce_sparse(self, bucket):
        if len(bucket.parameters) > 1:
            raise ValueError("sparse gradients cannot be in groups; leave them out, or use sparse_as_dense=True")
        if self.op not in (Average, Sum):
            raise ValueError("sparse gradients take op=Average or op=Sum; use sparse_as_dense=True for others")
        (parameter,) = bucket.parameters
        bucket.handle = result = ops.sparse_allreduce_async(
            parameter.grad, self.names[parameter], self.op, self.process_set
        )

        def finish():
            parameter.grad = result()

        bucket.finish = finish

    # ---- At the step ----

    def synchronize(self):
        """Waits for all reductions. Parameters that got no gradient on this rank take part with zeros: others may have
        one."""
        if self.is_active:
            for bucket in self.buckets:
                if bucket.handle is None:
                    self._reduce(bucket)
            try:
                for bucket in self.buckets:
                    bucket.finish()
            finally:
                self.start_over()
        self.synchronized = True

    def start_over(self):
        for bucket in self.buckets:
            bucket.handle = bucket.finish = None
            bucket.ready.clear()
            bucket.streams.clear()
        for parameter in self.passes_left:
            self.passes_left[parameter] = self.passes

    def abandon(self):
        """Forgets the reductions that are on their way, and returns their handles."""
        handles = [bucket.handle for bucket in self.buckets if bucket.handle is not None]
        self.start_over()
        return handles

    def is_in_flight(self):
        return any(bucket.handle is not None for bucket in self.buckets)

    def before_scaler(self):
        if self.is_in_flight():
            self.synchronize()
            self.synchronized_for_scaler = True

    def same_loss(self, loss):
        """The loss of all ranks: an optimizer that looks at it must decide alike everywhere."""
        if not self.is_active or loss is None:
            return loss
        tensor = torch.as_tensor(loss).detach().clone()
        op = self.op if self.op in (Average, Sum) else Average
        return ops.allreduce_(tensor, name="DistributedOptimizer.loss", op=op, process_set=self.process_set)


class _Distributed:
    """The members that the new class has over those of the optimizer's own class."""

    # GradScaler looks at the gradients, and does so through param_groups: it must see them reduced.
    @property
    def param_groups(self):
        if sys._getframe(1).f_globals.get("__name__") == "torch.amp.grad_scaler":
            communication = self.__dict__.get("_communication")
            if communication is not None:
                communication.before_scaler()
        return self.__dict__["param_groups"]

    @param_groups.setter
    def param_groups(self, groups):
        self.__dict__["param_groups"] = groups

    @property
    def _parameter_names(self):
        return self._communication.names

    def set_backward_passes_per_step(self, passes):
        self._communication.passes = passes
        self._communication.start_over()

    def synchronize(self):
        """Waits until all gradients are reduced; for those who change gradients before step (see skip_synchronize)."""
        self._communication.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self):
        """Within it, step takes the gradients as they are: synchronize() has been called before."""
        self._communication.should_synchronize = False
        try:
            yield
        finally:
            self._communication.should_synchronize = True

    def step(self, closure=None):
        communication = self._communication
        synchronizes = communication.should_synchronize and not communication.synchronized_for_scaler
        if synchronizes and (closure is None or communication.is_in_flight()):
            if communication.synchronized and communication.is_active:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
                    "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context "
                    "if you use optimizer.synchronize() in your code.",
                    stacklevel=2,
                )
            communication.synchronize()
        communication.synchronized = communication.synchronized_for_scaler = False
        # A scheduler that was made with the optimizer before it was wrapped asks that one whether it has stepped.
        self._wrapped_optimizer._opt_called = True
        if closure is None:
            return self._base_class.step(self)

        def reduced_closure():
            loss = closure()
            communication.synchronize()
            return communication.same_loss(loss) if isinstance(self, torch.optim.LBFGS) else loss

        return self._base_class.step(self, reduced_closure if synchronizes else closure)

    # torch wraps the step of a class that says no such thing; the base class's is wrapped already, and once is enough.
    step.hooked = True

    def zero_grad(self, set_to_none=True):
        if self._communication.is_in_flight():
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        self._communication.synchronized = self._communication.synchronized_for_scaler = False
        return self._base_class.zero_grad(self, set_to_none=set_to_none)

    def add_param_group(self, group):
        self._base_class.add_param_group(self, group)
        communication = self._communication
        number = len(self.param_groups) - 1
        for index, parameter in enumerate(self.param_groups[-1]["params"]):
            if parameter not in communication.names:
                communication.names[parameter] = f"allreduce.noname.{number}.{index}"
                if communication.is_active and parameter.requires_grad:
                    communication.watch([parameter])

    def load_state_dict(self, *arguments, **options):
        if self._communication.is_in_flight():
            self._communication.synchronize()
        self._communication.start_over()
        return self._base_class.load_state_dict(self, *arguments, **options)
