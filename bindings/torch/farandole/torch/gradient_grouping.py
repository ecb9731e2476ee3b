"""The buckets of an optimizer's gradients, and how they change."""

from ..basics import Average, Sum
from . import gradient_buckets
from .gradient_agreement import DENSE, NONE, is_sparse
from .gradient_buckets import Bucket, SharedBucket
from .gradient_hooks import GradientHooks
from .state import broadcast_object

SPARSE_IN_GROUP = "sparse gradients cannot be in groups; leave them out, or use sparse_as_dense=True"
SPARSE_OP = "sparse gradients take op=Average or op=Sum; use sparse_as_dense=True for others"
SPARSE_SHARED = (
    "sparse gradients cannot lie in shared memory; use sparse_as_dense=True, or gradients_in_shared_memory=False"
)


class GroupedGradients(GradientHooks):
    """Watches gradients in buckets. All ranks have the same buckets from the end of the first step on."""

    def __init__(self, names, passes, op, groups, process_set, shared):
        super().__init__(names, passes, process_set)
        self.op = op
        self.shared = shared
        self.world = None  # the group whose ranks have compared their parameters
        self.expected = {}  # {parameter: the expected code of its gradient in this step}
        self.ready = {}  # {parameter: (gradient, its version)}, after all backward passes
        self.has_new_parameters = False  # parameters were added that ranks have not compared yet
        self.buckets = []
        self.bucket_of = {}
        self.chooses_buckets = groups is None and not shared
        self.group_names = None  # names of the parameters of each group, if the program gave groups

    def _watch_all(self, groups):
        parameters = list(self.names)
        self.check_free(parameters)
        chosen = self._chosen([one for one in parameters if one.requires_grad], groups)
        chosen += [[one] for one in parameters if not one.requires_grad]
        in_buckets, others = gradient_buckets.in_shared_buckets(chosen) if self.shared else ([], chosen)
        for members in reversed(in_buckets):  # early parameters first, as in all add_bucket()s
            self.add_bucket(SharedBucket(members, -len(self.buckets), self.process_set))
        if not self.chooses_buckets:
            for members in others:
                self.add_bucket(Bucket(members, -len(self.buckets), is_given=len(members) > 1))
        self.watch(parameters)

    def _chosen(self, parameters, groups):
        """Lists of parameters in the order of rank 0, so that a group is the same on all ranks."""
        if self.shared and not groups:
            ordered = self._in_order_of_first_rank(parameters)
            return gradient_buckets.of_size(list(reversed(ordered)), gradient_buckets.SHARED_BUCKET_BYTES)
        if groups is None or (isinstance(groups, int) and groups == 0):
            return [[parameter] for parameter in parameters]
        chosen = gradient_buckets.checked_groups(parameters, groups)
        if chosen is None:
            chosen = gradient_buckets.split(self._in_order_of_first_rank(parameters), groups)
        self.group_names = [[self.names[parameter] for parameter in group] for group in chosen]
        return chosen

    def _in_order_of_first_rank(self, parameters):
        by_name = {self.names[parameter]: parameter for parameter in parameters}
        root = self.process_set.ranks[0]
        order = broadcast_object(list(by_name), root, "optimizer_groups", self.process_set)
        return [by_name[name] for name in order]

    def add_bucket(self, bucket):
        self.buckets.append(bucket)
        for parameter in bucket.parameters:
            self.bucket_of[parameter] = bucket
        bucket.start_over(self.expected)

    def add(self, parameters):
        if not self.is_active or not parameters:
            return
        self.check_free(parameters)
        self.watch(parameters)
        self.has_new_parameters = True
        if not self.chooses_buckets:
            for parameter in parameters:
                self.add_bucket(Bucket([parameter], -len(self.buckets)))

    def _choose_buckets(self, ordered):
        """Creates buckets by size, in the order in which gradients arrive.

        Sparse gradients get their own buckets. Unexpected gradients, perhaps of frozen parameters, are separate from
        the expected ones, which must not wait for them.
        """
        self.buckets, self.bucket_of = [], {}
        codes = self.expected
        dense = [parameter for parameter in ordered if codes[parameter] != NONE and not is_sparse(codes[parameter])]
        unexpected = [parameter for parameter in ordered if self.expected[parameter] == NONE]
        groups = gradient_buckets.of_size(dense) + gradient_buckets.of_size(unexpected)
        groups += [[parameter] for parameter in ordered if is_sparse(self.expected[parameter])]
        for number, members in enumerate(groups):
            # The next forward pass needs early parameters first, and their gradients arrive last.
            self.add_bucket(Bucket(members, number - len(groups)))

    def _refusal(self, bucket):
        """The reason why a sparse gradient cannot be reduced in a bucket; None if it can."""
        if bucket.is_shared:
            return SPARSE_SHARED
        if bucket.is_given:
            return SPARSE_IN_GROUP
        return SPARSE_OP if self.op not in (Average, Sum) else None

    def _replace(self, bucket):
        """Creates new buckets for parameters whose type or device has changed. Returns {parameter: bucket}."""
        shared, others = gradient_buckets.in_shared_buckets([bucket.parameters])
        made = [SharedBucket(members, bucket.priority, self.process_set, is_local=True) for members in shared]
        made += [Bucket(members, bucket.priority) for members in others]
        place = self.buckets.index(bucket)
        self.buckets[place : place + 1] = made
        for one in made:
            one.start_over(self.expected)
            for parameter in one.parameters:
                self.bucket_of[parameter] = one
                if parameter in self.ready and self.expected.get(parameter, DENSE):
                    one.waiting -= 1
        return self.bucket_of

    def _set_apart(self, parameters):
        """Moves parameters whose gradients turn out to be sparse out of their buckets."""
        for parameter in parameters:
            bucket = self.bucket_of[parameter]
            bucket.parameters = [one for one in bucket.parameters if one is not parameter]
            self.add_bucket(Bucket([parameter], -len(self.buckets)))
