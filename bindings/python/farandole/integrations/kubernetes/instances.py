"""The table of instance types, with the number of GPUs and EFA devices of each."""

import difflib

from .errors import WrongCombination

# type: (accelerators, their resource, EFA devices). The EFA counts come from Karpenter's table, made from EC2's.
# p3.2xlarge, common in tutorials, has no EFA; in its family only p3dn.24xlarge has.
_NVIDIA, _NEURON, _NONE = "nvidia.com/gpu", "aws.amazon.com/neuron", ""
TABLE = {
    "m5.xlarge": (0, _NONE, 0),
    "c5n.9xlarge": (0, _NONE, 1),
    "c5n.18xlarge": (0, _NONE, 1),
    "c6gn.16xlarge": (0, _NONE, 1),
    "c7gn.16xlarge": (0, _NONE, 1),
    "c6in.32xlarge": (0, _NONE, 2),
    "c8gn.48xlarge": (0, _NONE, 2),
    "hpc6a.48xlarge": (0, _NONE, 1),
    "hpc6id.32xlarge": (0, _NONE, 2),
    "hpc7a.96xlarge": (0, _NONE, 2),
    "hpc7g.16xlarge": (0, _NONE, 1),
    "p3.2xlarge": (1, _NVIDIA, 0),
    "p3.8xlarge": (4, _NVIDIA, 0),
    "p3.16xlarge": (8, _NVIDIA, 0),
    "p3dn.24xlarge": (8, _NVIDIA, 1),
    "p4d.24xlarge": (8, _NVIDIA, 4),
    "p4de.24xlarge": (8, _NVIDIA, 4),
    "p5.4xlarge": (1, _NVIDIA, 1),
    "p5.48xlarge": (8, _NVIDIA, 32),
    "p5e.48xlarge": (8, _NVIDIA, 32),
    "p5en.48xlarge": (8, _NVIDIA, 16),
    "p6-b200.48xlarge": (8, _NVIDIA, 8),
    "p6-b300.48xlarge": (8, _NVIDIA, 16),
    "g4dn.xlarge": (1, _NVIDIA, 0),
    "g4dn.2xlarge": (1, _NVIDIA, 0),
    "g4dn.4xlarge": (1, _NVIDIA, 0),
    "g4dn.8xlarge": (1, _NVIDIA, 1),
    "g4dn.12xlarge": (4, _NVIDIA, 1),
    "g4dn.16xlarge": (1, _NVIDIA, 1),
    "g4dn.metal": (8, _NVIDIA, 1),
    "g5.xlarge": (1, _NVIDIA, 0),
    "g5.2xlarge": (1, _NVIDIA, 0),
    "g5.4xlarge": (1, _NVIDIA, 0),
    "g5.8xlarge": (1, _NVIDIA, 1),
    "g5.12xlarge": (4, _NVIDIA, 1),
    "g5.16xlarge": (1, _NVIDIA, 1),
    "g5.24xlarge": (4, _NVIDIA, 1),
    "g5.48xlarge": (8, _NVIDIA, 1),
    "g6.xlarge": (1, _NVIDIA, 0),
    "g6.2xlarge": (1, _NVIDIA, 0),
    "g6.4xlarge": (1, _NVIDIA, 0),
    "g6.8xlarge": (1, _NVIDIA, 1),
    "g6.12xlarge": (4, _NVIDIA, 1),
    "g6.16xlarge": (1, _NVIDIA, 1),
    "g6.24xlarge": (4, _NVIDIA, 1),
    "g6.48xlarge": (8, _NVIDIA, 1),
    "g6e.xlarge": (1, _NVIDIA, 0),
    "g6e.2xlarge": (1, _NVIDIA, 0),
    "g6e.4xlarge": (1, _NVIDIA, 0),
    "g6e.8xlarge": (1, _NVIDIA, 1),
    "g6e.12xlarge": (4, _NVIDIA, 1),
    "g6e.16xlarge": (1, _NVIDIA, 1),
    "g6e.24xlarge": (4, _NVIDIA, 2),
    "g6e.48xlarge": (8, _NVIDIA, 4),
    "g7e.8xlarge": (1, _NVIDIA, 1),
    "g7e.12xlarge": (2, _NVIDIA, 1),
    "g7e.24xlarge": (4, _NVIDIA, 2),
    "g7e.48xlarge": (8, _NVIDIA, 4),
    "trn1.32xlarge": (16, _NEURON, 8),
    "trn1n.32xlarge": (16, _NEURON, 16),
    "trn2.48xlarge": (16, _NEURON, 16),
}


def find(name):
    """(accelerators, resource, EFA devices) of an instance type."""
    if name in TABLE:
        return TABLE[name]
    near = difflib.get_close_matches(name, TABLE, n=3, cutoff=0.5)
    meant = f"; did you mean {', '.join(near)}?" if near else ""
    raise WrongCombination(
        f"--instance-type {name} is not in the table of GPUs and EFA devices{meant} For a type that is newer than the "
        f"table leave --instance-type out, and give --gpus, --efa and "
        f"--node-selector node.kubernetes.io/instance-type={name}"
    )


def nearest_with_efa(name):
    """The first type of the same family that has EFA; None if none has."""
    family = name.split(".")[0]
    return next((other for other, (_, _, efa) in TABLE.items() if efa and other.split(".")[0].startswith(family)), None)
