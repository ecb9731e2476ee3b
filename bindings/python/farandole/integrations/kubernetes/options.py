"""The options of `farandole kubernetes gen`, and its kinds."""

import argparse
import functools

from .errors import WrongCombination
from .location.labels import DEFAULT
from .location.manifest import MODES

KINDS = {
    "job": "Indexed Job: needs nothing but Kubernetes itself",
    "jobset": "JobSet: an Indexed Job that is restarted as a whole",
    "statefulset": "StatefulSet: ranks that never finish, with stable names",
    "deployment": "Deployment: elastic ranks that never finish, for continuous training and the HPA",
    "lws": "LeaderWorkerSet: one group of pods, recreated together",
    "mpijob": "MPIJob of MPI Operator: mpirun in a launcher pod, ssh to the workers",
    "pytorchjob": "PyTorchJob of Training Operator; with --nnodes MIN:MAX its elastic form",
    "tfjob": "TFJob of Training Operator",
    "trainjob": "TrainJob of Kubeflow Trainer v2, with its TrainingRuntime",
    "rayjob": "RayJob of KubeRay",
    "katib": "Katib Experiment: random search with one of the above as its trial",
}
TRIALS = ["job", "pytorchjob", "mpijob", "trainjob"]
# --gang: the scheduler of that PodGroup, unless --scheduler-name gives another
GANGS = {"volcano": "volcano", "coscheduling": "scheduler-plugins-scheduler"}
PORTS = 64  # the size of the fixed range that begins at --port-base


class Parser(argparse.ArgumentParser):
    """Raises WrongCombination where argparse would end the process with 2."""

    def error(self, message):
        raise WrongCombination(f"{message}; `{self.prog} --help` lists the options")


def _list(group, name, metavar, meaning):
    group.add_argument(name, metavar=metavar, action="append", default=[], help=meaning)


def _add_size(group):
    group.add_argument("--nnodes", default="1", metavar="N|MIN:MAX", help="pods; MIN:MAX makes the job elastic")
    group.add_argument("--nproc-per-node", default="1", metavar="N|auto|gpu|cpu", help="ranks in each pod")
    group.add_argument("--max-restarts", type=int, default=3, metavar="N", help="failures that are survived (3)")
    group.add_argument("--max-runtime", metavar="12h", help="after this the job is ended")
    group.add_argument("--ttl", type=int, metavar="SECONDS", help="the finished job is deleted after these seconds")
    group.add_argument(
        "--grace",
        type=int,
        default=110,
        metavar="SECONDS",
        help="from SIGTERM to SIGKILL (110: slightly less than the notice of spot)",
    )


def _add_hardware(group):
    group.add_argument("--instance-type", metavar="TYPE", help="p5.48xlarge, ...: gives CPUs, memory, --gpus and --efa")
    group.add_argument("--gpus", type=int, metavar="N", help="GPUs of each pod (all of --instance-type)")
    group.add_argument("--gpu-resource", metavar="NAME", help="name of their resource (nvidia.com/gpu)")
    group.add_argument(
        "--device-class", metavar="NAME", help="GPUs by a claim of this DeviceClass (gpu.nvidia.com), not by a plugin"
    )
    group.add_argument(
        "--compute-domain", action="store_true", help="a ComputeDomain: NVLink between the nodes (GB200 and later)"
    )
    group.add_argument("--efa", metavar="N|all|off", default="off", help="EFA devices of each pod, which must be used")
    group.add_argument(
        "--tcp-fallback", action="store_true", help="with --efa: a job that cannot use EFA runs over TCP, and warns"
    )
    group.add_argument(
        "--cpus", default=None, metavar="N", help="CPUs of each pod (those of --instance-type, else one a rank)"
    )
    group.add_argument(
        "--memory",
        default=None,
        metavar="SIZE",
        help="memory of each pod (that of --instance-type, else 2Gi a rank, 8Gi with GPUs)",
    )
    group.add_argument("--hugepages-2mi", metavar="SIZE", help="huge pages for EFA; off, see the documentation")
    group.add_argument(
        "--shm",
        default=None,
        metavar="SIZE",
        help="/dev/shm (1Gi a rank, up to 8Gi on a large node, at most half of the memory; Kubernetes gives 64Mi)",
    )
    group.add_argument("--host-network", action="store_true", help="the node's own network")


def _add_place(group):
    group.add_argument("--spot", action="store_true", help="spot capacity of Karpenter or EKS")
    group.add_argument(
        "--capacity-label",
        default="karpenter.sh/capacity-type=spot",
        metavar="KEY=VALUE",
        help="the node label that --spot requires",
    )
    group.add_argument("--zone", metavar="ZONE", help="this zone (else: all pods in one zone, whichever)")
    _list(group, "--node-selector", "KEY=VALUE", "only nodes with this label")
    _list(group, "--system-selector", "KEY=VALUE", "the same for pods without ranks (mpijob: launcher, rayjob: head)")
    _list(group, "--toleration", "KEY[=VALUE][:EFFECT]", "a taint that does not keep the pods away")
    group.add_argument("--priority-class", metavar="NAME", help="PriorityClass of the pods")
    group.add_argument("--queue", metavar="NAME", help="Kueue's local queue: the job waits there")
    group.add_argument(
        "--required-topology", metavar="LABEL", help="with --queue: all pods within one value of this node label"
    )
    group.add_argument("--preferred-topology", metavar="LABEL", help="the same, where it is possible")
    group.add_argument(
        "--locations",
        choices=list(MODES),
        help="tells ranks where their node is in the network, so that algorithms keep data near. zone: pods may run in "
        "several zones, and each has the label of its zone (Kubernetes 1.35, or 1.33 with the feature gate "
        "PodTopologyLabelsAdmission; on older ones no location is known). nodes: all levels, by an init container that "
        "may read nodes",
    )
    group.add_argument(
        "--location-labels",
        metavar="A,B,...",
        help=f"with --locations nodes: the labels of nodes, the widest first ({', '.join(DEFAULT)})",
    )
    group.add_argument("--scheduler-name", metavar="NAME", help="of the pods (the cluster's default)")
    group.add_argument("--gang", choices=list(GANGS), help="a PodGroup: pods are scheduled together, or none is")


def _add_storage(group):
    _list(group, "--pvc", "CLAIM:PATH[:ro]", "mount an existing claim")
    _list(group, "--new-pvc", "CLAIM:PATH:SIZE", "make a claim and mount it")
    group.add_argument("--storage-class", metavar="NAME", help="of the new claims (the cluster's default)")
    group.add_argument("--access-mode", default="ReadWriteMany", metavar="MODE", help="of them (ReadWriteMany)")
    _list(group, "--config-map", "NAME:PATH", "mount a ConfigMap, for scripts")


def _add_safety(group):
    group.add_argument("--service-account", metavar="NAME", help="an existing one, such as one with a role for S3")
    group.add_argument("--job-key-secret", metavar="NAME", help="Secret whose entry 'key' is the job's key")
    group.add_argument("--run-as", type=int, default=1000, metavar="UID", help="user and group (1000)")
    group.add_argument(
        "--read-only-root", action="store_true", help="a read-only root file system, and /tmp on the node"
    )
    group.add_argument("--network-policy", action="store_true", help="only the job's own ports, between its own pods")
    group.add_argument(
        "--allow-egress",
        type=int,
        action="append",
        default=[],
        metavar="PORT",
        help="with --network-policy: a TCP port that may be reached anywhere (443 for S3)",
    )
    group.add_argument("--port-base", type=int, default=29500, metavar="PORT", help=f"first of {PORTS} fixed ports")


def _add_watching(group):
    group.add_argument("--monitoring", action="store_true", help="each rank's metrics, and a PodMonitor")
    group.add_argument("--metrics-port", type=int, default=9400, metavar="PORT", help="of local rank 0 (9400)")
    group.add_argument("--json-logs", action="store_true", help="logs with one JSON object a line, for CloudWatch")


def _add_details(group):
    _list(group, "--env", "NAME=VALUE", "a variable of the ranks")
    _list(group, "--label", "KEY=VALUE", "a label of every object and pod")
    _list(group, "--annotation", "KEY=VALUE", "an annotation of every pod")
    _list(group, "--set", "PATH=VALUE", "overrides a generated field: Job.spec.backoffLimit=0")
    group.add_argument("--implementation", choices=["openmpi", "mpich"], default="openmpi", help="mpijob: whose mpirun")
    group.add_argument(
        "--cluster-runtime",
        action="store_true",
        help="trainjob: a ClusterTrainingRuntime, for all namespaces, instead of a TrainingRuntime",
    )
    group.add_argument("--ray-version", default="2.60.0", metavar="VERSION", help="rayjob: Ray's version in the image")
    group.add_argument("--trial", choices=TRIALS, default="job", help="katib: the kind of each trial")
    _list(
        group,
        "--parameter",
        "NAME:TYPE:MIN:MAX",
        "katib: lr:double:0.001:0.1, batch:discrete:16,32 or opt:categorical:sgd,adam; the command gets --lr=...",
    )
    group.add_argument("--metric", default="loss", metavar="NAME", help="katib: printed by rank 0 as `loss=0.25`")
    group.add_argument("--maximize", action="store_true", help="katib: the metric is to be large")
    group.add_argument("--trials", type=int, default=12, metavar="N", help="katib: how many in all")
    group.add_argument("--parallel-trials", type=int, metavar="N", help="katib: how many at a time (3, or all)")


def parser():
    kinds = "\n".join(f"  {kind:<12} {meaning}" for kind, meaning in KINDS.items())
    result = Parser(
        prog="farandole kubernetes gen",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="farandole kubernetes gen KIND --image IMAGE [options] -- COMMAND...",
        description=f"Prints a manifest for `kubectl apply -f -`. KIND is one of\n{kinds}",
        epilog="After --: the command of each rank, the same in every pod.",
    )
    result.add_argument("kind", choices=list(KINDS), metavar="KIND", help="see above")
    first = result.add_argument_group("what")
    first.add_argument("--name", default="train", help="of the job (train)")
    first.add_argument("--namespace", help="written into every object (none: kubectl's own)")
    first.add_argument("--image", required=True, help="with farandole and the program in it")
    _add_size(result.add_argument_group("how many, how long"))
    _add_hardware(result.add_argument_group("hardware of a pod"))
    _add_place(result.add_argument_group("where"))
    _add_storage(result.add_argument_group("storage"))
    _add_safety(result.add_argument_group("safety"))
    _add_watching(result.add_argument_group("watching"))
    _add_details(result.add_argument_group("details"))
    return result


@functools.cache
def _parser_of_the_given():
    made = parser()
    for action in made._actions:
        action.default, action.required = argparse.SUPPRESS, False
    return made


def given_options(words):
    """The names of the options on the command line, in their order; those with their default are not among them."""
    return [name for name in vars(_parser_of_the_given().parse_args(words)) if name != "kind"]
