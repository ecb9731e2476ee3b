"""The process group: the methods that c10d calls, its messages, its subgroups and its end. See also collectives.py."""

import contextlib
import functools
import itertools

import torch
import torch.distributed as dist

from ... import _native, errors
from . import batches, operands
from .calls import only
from .collectives import Collectives
from .devices import DeviceWork, place_on
from .dispatched import dispatched, dispatcher_for
from .work import Work, as_torch, together
from .world import World

_ANY_SOURCE = -1
_GRACE_S = 2.0  # the time that operations in flight have when their group is destroyed


def _take_kept(pending, plain, afterwards):
    """Copies contents that waited on the host: small messages, and messages that arrived before their receive."""
    kept = pending.kept
    if kept:
        plain.detach().copy_(torch.frombuffer(bytearray(kept), dtype=plain.dtype).view(plain.shape))
    if afterwards is not None:
        afterwards()


@dispatched
class ProcessGroup(Collectives, dist.ProcessGroup):
    """A process group of torch.distributed whose operations run on farandole. c10d creates it and calls its methods."""

    def __init__(self, store, rank, size, timeout, world, members, name=""):
        dist.ProcessGroup.__init__(self, rank, size)
        Collectives.__init__(self)
        self._store = store
        self._rank, self._size = rank, size
        self._world = world
        self._ranks = tuple(members)  # ranks of the world, in the group's order
        self._group = world.group(self._ranks)
        self._channel = _native.Channel(self._group)
        self._name, self._desc = name, "undefined"
        self._batch = None
        self._peers_of_batch = {}
        self._registered = {}  # addresses of segments by the pool's id
        self._barriers = itertools.count()
        self._splits = itertools.count()
        self.set_timeout(timeout)
        self._dispatcher = dispatcher_for(self, self._own_device_types())
        batches.install(ProcessGroup)
        world.add(self)

    # ---- Properties ----

    def getBackendName(self):
        """The name of the backend: "farandole"."""
        return "farandole"

    name = getBackendName

    def getRank(self):
        """This rank's number in the group."""
        return self._rank

    def getSize(self):
        """The number of ranks in the group."""
        return self._size

    rank, size = getRank, getSize

    def getGroupName(self):
        """The name that torch has given to the group."""
        return self._name

    def setGroupName(self, name):
        """Sets the name of the group."""
        self._name = name

    def getGroupDesc(self):
        """The description that torch has given to the group."""
        return self._desc

    def setGroupDesc(self, desc):
        """Sets the description of the group."""
        self._desc = desc

    def get_group_store(self):
        """The store of the group."""
        return self._store

    def _get_backend(self, device=None):
        return self

    def _own_device_types(self):
        """The types of devices whose tensors this backend takes."""
        return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]

    @property
    def _device_types(self):
        return [torch.device(one) for one in self._own_device_types()]

    @property
    def supports_splitting(self):
        """True: splitGroup is supported."""
        return True

    def set_timeout(self, timeout):
        """Sets the default timeout of operations, a timedelta."""
        self._timeout = timeout
        self._timeout_ns = int(timeout.total_seconds() * 1e9)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self):
        pass

    def eager_connect_single_device(self, device=None):
        """Does nothing: the first collective on a device connects it. torch calls it for
        init_process_group(device_id=).
        """

    def _get_sequence_number_for_group(self):
        return 0

    # ---- Messages and barriers ----

    def _keep_batch(self, work):
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _start_coalescing(self, device=None):
        self._batch = []
        self._begin_each()

    def _end_coalescing(self, device=None):
        works, self._batch = self._batch or [], None
        blocking = self._launch_each()
        return together([*works, *(Work((pending,), [], afterwards) for pending, afterwards in blocking)])

    @contextlib.contextmanager
    def batched(self, peers):
        """Messages on devices that are started inside are one batch. `peers`: how many there are with each rank."""
        self._peers_of_batch = peers
        try:
            yield
        finally:
            self._peers_of_batch = {}

    def _message(self, outgoing, tensors, peer, tag):
        tensor = only(tensors, "send" if outgoing else "recv")
        plain, afterwards = (operands.source(tensor), None) if outgoing else operands.target(tensor)
        if peer != _ANY_SOURCE and not 0 <= peer < self._size:
            raise errors.InvalidArgumentError(f"there is no rank {peer} in a group of {self._size}")
        stream = None if plain.is_cpu else self._group_streams.enter(plain.device, plain, peer)
        place = stream and place_on(stream, plain)
        try:
            pending = self._channel.post(
                plain,
                outgoing,
                plain.data_ptr(),
                plain.nbytes,
                peer,
                tag,
                self._timeout_ns,
                place,
                self._peers_of_batch.get(peer, 0),
            )
        except errors.Error as error:
            raise as_torch(error) from None
        if stream is None:
            return self._keep_batch(Work((pending,), [tensor], afterwards))
        finish = None if outgoing else functools.partial(_take_kept, pending, plain, afterwards)
        return self._keep_batch(DeviceWork((pending,), [tensor], finish, None, stream, plain))

    def send(self, tensors, peer, tag=0):
        """Starts sending a list of one tensor to rank `peer` of the group, and returns its Work."""
        return self._message(True, tensors, peer, tag)

    def recv(self, tensors, peer, tag=0):
        """Starts receiving into a list of one tensor from rank `peer` of the group, and returns its Work."""
        return self._message(False, tensors, peer, tag)

    def recv_anysource(self, tensors, tag=0):
        """As recv, from any rank. The Work's source_rank() returns the sender."""
        return self._message(False, tensors, _ANY_SOURCE, tag)

    recvAnysource = recv_anysource

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """A barrier in which all ranks learn the missing ranks from rank 0. The group stays usable after a timeout."""
        from .monitored_barrier import monitored_barrier

        monitored_barrier(self._store, self._rank, self._size, timeout or self._timeout, wait_all_ranks,
                          next(self._barriers))  # fmt: skip

    # ---- Memory ----

    def register_mem_pool(self, pool, symm=False):
        """Registers the segments that a torch.cuda.MemPool has now with NCCL, which then needs no copies of its own.

        Each rank decides for itself. Call deregister_mem_pool before the pool frees its memory.
        """
        if symm:
            raise as_torch(
                errors.UnsupportedError(
                    "register_mem_pool: symmetric windows need memory that all ranks allocate together: "
                    "farandole.torch.empty(..., process_set=...)"
                )
            )
        segments = [(one["device"], one["address"], one["total_size"]) for one in pool.snapshot()]
        try:
            for device, address, size in segments:
                self._channel.register_memory(device, address, size)
                self._registered.setdefault(pool.id, []).append(address)
        except errors.Error as error:
            raise as_torch(error) from None

    def deregister_mem_pool(self, pool):
        """Ends the registration of the pool's segments. The device must have finished all work on them."""
        addresses = self._registered.pop(pool.id, None)
        if addresses is None:
            raise as_torch(errors.InvalidArgumentError("deregister_mem_pool: the pool is not registered"))
        try:
            for address in addresses:
                self._channel.deregister_memory(address)
        except errors.Error as error:
            raise as_torch(error) from None

    # ---- Subgroups and end ----

    def splitGroup(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None, devices=None):
        """Creates a group of some of this group's ranks. None if this rank is not one of them."""
        number = next(self._splits)
        ranks = list(ranks)
        if self._rank not in ranks:
            return None
        name = group_name or f"{self._name}:split:{number}:{'_'.join(map(str, ranks))}"
        part = ProcessGroup(
            dist.PrefixStore(f"{name}/", self._store),
            ranks.index(self._rank),
            len(ranks),
            timeout or self._timeout,
            self._world,
            [self._ranks[one] for one in ranks],
            name,
        )
        if group_desc:
            part.setGroupDesc(group_desc)
        return part

    split_group = splitGroup

    def merge_remote_group(self, store, size, timeout=None, group_name=None, group_desc=None):
        """Creates a group of `size` ranks: those of this group and of others that call it with the same new `store`.

        Their ranks are in the order in which they come.
        """
        rank = store.add("farandole/merge", 1) - 1
        timeout = timeout or self._timeout
        world = World(store, rank, size, timeout, {})
        whole = ProcessGroup(store, rank, size, timeout, world, range(size), group_name or f"{self._name}:merge")
        if group_desc:
            whole.setGroupDesc(group_desc)
        return whole

    def give_up(self, reason):
        """Fails all operations in flight, on all ranks, with `reason` and this rank's name."""
        self._channel.abort(reason)

    def abort(self):
        """Ends the group on all its ranks. Operations in flight fail with AbortedError and this rank's name."""
        self._channel.abort("torch.distributed requested it")
        self._end(0.0)

    def shutdown(self):
        """Ends the group. Operations in flight may continue for a short time; then they end on all ranks."""
        self._end(_GRACE_S)

    def _end(self, grace_s):
        self._channel.close(grace_s)
        self._world.forget(self)
