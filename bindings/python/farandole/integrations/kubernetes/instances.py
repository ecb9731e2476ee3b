"""The table of instance types: CPUs, memory, accelerators, EFA devices, network cards and NUMA nodes of each."""

import difflib
from typing import NamedTuple

from .errors import WrongCombination

_NVIDIA, _NEURON, _NONE = "nvidia.com/gpu", "aws.amazon.com/neuron", ""


class Instance(NamedTuple):
    """One type of EC2, from EC2's own description of its types."""

    vcpus: int
    memory_gib: int
    accelerators: int
    resource: str  # of the accelerators
    efa: int  # devices; p3.2xlarge, common in tutorials, has none, and in its family only p3dn.24xlarge has
    network_cards: int
    numa_nodes: int  # 0: not known here

    @property
    def allocatable(self):
        """(CPUs, MiB) that a node of this type has for pods, as Karpenter computes them for EKS's images.

        The kubelet keeps 6 % of the first core, 1 % of the second, 0.5 % of two more and 0.25 % of the others, and
        255 MiB and 11 MiB for each pod that the node may have; 100 MiB are the threshold of eviction, and 7.5 % of the
        memory belong to the hypervisor and the kernel."""
        shares = ((0.06, 1), (0.01, 1), (0.005, 2), (0.0025, self.vcpus))
        kept, left = 0.0, self.vcpus
        for share, cores in shares:
            kept += share * min(cores, left)
            left -= min(cores, left)
        pods = 58 if self.vcpus < 16 else 234 if self.vcpus < 64 else 737
        return self.vcpus - kept, int(self.memory_gib * 1024 * (1 - 0.075)) - (255 + 11 * pods) - 100

    def share(self, accelerators):
        """(CPUs, GiB) to request for a pod with so many of the accelerators; 1 CPU and 1 GiB stay for DaemonSets."""
        cpus, mib = self.allocatable
        part = accelerators / self.accelerators if self.accelerators and accelerators else 1
        return max(1, int((cpus - 1) * part)), max(1, int((mib / 1024 - 1) * part))


TABLE = {
    name: Instance(*row)
    for name, row in {
        # vCPUs, memory in GiB, accelerators, their resource, EFA devices, network cards, NUMA nodes
        "m5.xlarge": (4, 16, 0, _NONE, 0, 1, 1),
        "c5n.9xlarge": (36, 96, 0, _NONE, 1, 1, 1),
        "c5n.18xlarge": (72, 192, 0, _NONE, 1, 1, 2),
        "c6gn.16xlarge": (64, 128, 0, _NONE, 1, 1, 1),
        "c7gn.16xlarge": (64, 128, 0, _NONE, 1, 1, 1),
        "c6in.32xlarge": (128, 256, 0, _NONE, 2, 2, 2),
        "c8gn.48xlarge": (192, 384, 0, _NONE, 2, 2, 2),
        "hpc6a.48xlarge": (96, 384, 0, _NONE, 1, 1, 0),
        "hpc6id.32xlarge": (64, 1024, 0, _NONE, 2, 2, 2),
        "hpc7a.96xlarge": (192, 768, 0, _NONE, 2, 2, 0),
        "hpc7g.16xlarge": (64, 128, 0, _NONE, 1, 1, 1),
        "p3.2xlarge": (8, 61, 1, _NVIDIA, 0, 1, 1),
        "p3.8xlarge": (32, 244, 4, _NVIDIA, 0, 1, 1),
        "p3.16xlarge": (64, 488, 8, _NVIDIA, 0, 1, 2),
        "p3dn.24xlarge": (96, 768, 8, _NVIDIA, 1, 1, 2),
        "p4d.24xlarge": (96, 1152, 8, _NVIDIA, 4, 4, 2),
        "p4de.24xlarge": (96, 1152, 8, _NVIDIA, 4, 4, 2),
        "p5.4xlarge": (16, 256, 1, _NVIDIA, 1, 1, 1),
        "p5.48xlarge": (192, 2048, 8, _NVIDIA, 32, 32, 2),
        "p5e.48xlarge": (192, 2048, 8, _NVIDIA, 32, 32, 2),
        "p5en.48xlarge": (192, 2048, 8, _NVIDIA, 16, 16, 2),
        "p6-b200.48xlarge": (192, 2048, 8, _NVIDIA, 8, 8, 2),
        "p6-b300.48xlarge": (192, 4096, 8, _NVIDIA, 16, 17, 2),
        "g4dn.xlarge": (4, 16, 1, _NVIDIA, 0, 1, 1),
        "g4dn.2xlarge": (8, 32, 1, _NVIDIA, 0, 1, 1),
        "g4dn.4xlarge": (16, 64, 1, _NVIDIA, 0, 1, 1),
        "g4dn.8xlarge": (32, 128, 1, _NVIDIA, 1, 1, 1),
        "g4dn.12xlarge": (48, 192, 4, _NVIDIA, 1, 1, 1),
        "g4dn.16xlarge": (64, 256, 1, _NVIDIA, 1, 1, 2),
        "g4dn.metal": (96, 384, 8, _NVIDIA, 1, 1, 2),
        "g5.xlarge": (4, 16, 1, _NVIDIA, 0, 1, 1),
        "g5.2xlarge": (8, 32, 1, _NVIDIA, 0, 1, 1),
        "g5.4xlarge": (16, 64, 1, _NVIDIA, 0, 1, 1),
        "g5.8xlarge": (32, 128, 1, _NVIDIA, 1, 1, 1),
        "g5.12xlarge": (48, 192, 4, _NVIDIA, 1, 1, 1),
        "g5.16xlarge": (64, 256, 1, _NVIDIA, 1, 1, 1),
        "g5.24xlarge": (96, 384, 4, _NVIDIA, 1, 1, 1),
        "g5.48xlarge": (192, 768, 8, _NVIDIA, 1, 1, 2),
        "g6.xlarge": (4, 16, 1, _NVIDIA, 0, 1, 1),
        "g6.2xlarge": (8, 32, 1, _NVIDIA, 0, 1, 1),
        "g6.4xlarge": (16, 64, 1, _NVIDIA, 0, 1, 1),
        "g6.8xlarge": (32, 128, 1, _NVIDIA, 1, 1, 1),
        "g6.12xlarge": (48, 192, 4, _NVIDIA, 1, 1, 1),
        "g6.16xlarge": (64, 256, 1, _NVIDIA, 1, 1, 1),
        "g6.24xlarge": (96, 384, 4, _NVIDIA, 1, 1, 1),
        "g6.48xlarge": (192, 768, 8, _NVIDIA, 1, 1, 2),
        "g6e.xlarge": (4, 32, 1, _NVIDIA, 0, 1, 1),
        "g6e.2xlarge": (8, 64, 1, _NVIDIA, 0, 1, 1),
        "g6e.4xlarge": (16, 128, 1, _NVIDIA, 0, 1, 1),
        "g6e.8xlarge": (32, 256, 1, _NVIDIA, 1, 1, 1),
        "g6e.12xlarge": (48, 384, 4, _NVIDIA, 1, 1, 1),
        "g6e.16xlarge": (64, 512, 1, _NVIDIA, 1, 1, 1),
        "g6e.24xlarge": (96, 768, 4, _NVIDIA, 2, 2, 1),
        "g6e.48xlarge": (192, 1536, 8, _NVIDIA, 4, 4, 2),
        "g7e.8xlarge": (32, 256, 1, _NVIDIA, 1, 1, 1),
        "g7e.12xlarge": (48, 512, 2, _NVIDIA, 1, 1, 1),
        "g7e.24xlarge": (96, 1024, 4, _NVIDIA, 2, 2, 1),
        "g7e.48xlarge": (192, 2048, 8, _NVIDIA, 4, 4, 2),
        "trn1.32xlarge": (128, 512, 16, _NEURON, 8, 8, 2),
        "trn1n.32xlarge": (128, 512, 16, _NEURON, 16, 16, 2),
        "trn2.48xlarge": (192, 2048, 16, _NEURON, 16, 16, 2),
    }.items()
}


def find(name):
    """The row of an instance type."""
    if name in TABLE:
        return TABLE[name]
    near = difflib.get_close_matches(name, TABLE, n=3, cutoff=0.5)
    meant = f"; did you mean {', '.join(near)}?" if near else "."
    raise WrongCombination(
        f"--instance-type {name} is not in the table of instance types{meant} For a type that is newer than the "
        f"table leave --instance-type out, and give --gpus, --efa and "
        f"--node-selector node.kubernetes.io/instance-type={name}"
    )


def nearest_with_efa(name):
    """The first type of the same family that has EFA; None if none has."""
    family = name.split(".")[0]
    return next((other for other, row in TABLE.items() if row.efa and other.split(".")[0].startswith(family)), None)
