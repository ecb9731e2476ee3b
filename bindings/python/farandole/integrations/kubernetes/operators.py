"""Kinds of Kubeflow's operators: MPIJob, PyTorchJob, TFJob, TrainJob."""

from . import values
from .companions import around
from .document import Item, Map
from .dra import claimed
from .gang import queue_labels
from .hardware import devices
from .names import metadata
from .plain_kinds import failure_policy, job_set_failure_policy, template
from .pods import container, pod_spec, run_command, variables

SSH = "/home/farandole/.ssh"
# Variables that mpirun does not pass to ranks: each pod has its own, and process 1 of a worker reads the time.
_OF_POD = {"FARANDOLE_POD_NAME", "FARANDOLE_NODE_NAME", "FARANDOLE_TERM_GRACE_S"}


def top(kind, api, o, spec):
    return Item(apiVersion=api, kind=kind, metadata=metadata(o, **queue_labels(o)), spec=spec)


def run_policy(o):
    made = Map(cleanPodPolicy="Running", backoffLimit=o.max_restarts)
    made.add("activeDeadlineSeconds", values.seconds(o.max_runtime) if o.max_runtime else None)
    made.add("ttlSecondsAfterFinished", o.ttl)
    made.add("suspend", True if o.queue else None, "Kueue starts it.")
    return made


# --- MPIJob ---------------------------------------------------------------------------------------------------------


def _mpirun(o):
    ranks = str(o.max_nodes * o.processes)
    passed = [one["name"] for one in variables(o) if one["name"] not in _OF_POD]
    if o.implementation == "mpich":
        return [
            "mpiexec",
            "-f",
            "/etc/mpi/hostfile",
            "-n",
            ranks,
            "-ppn",
            str(o.processes),
            "-genvlist",
            ",".join(passed),
            *o.command,
        ]
    forwarded = [word for name in passed for word in ("-x", name)]
    return ["mpirun", "--hostfile", "/etc/mpi/hostfile", "-np", ranks, "--bind-to", "none", *forwarded, *o.command]


def _launcher(o):
    env = variables(o)
    if o.implementation == "openmpi":
        env.append(
            Item(
                name="PRTE_MCA_prte_default_hostfile",
                value="/etc/mpi/hostfile",
                why="The operator sets OMPI_MCA_orte_default_hostfile, which Open MPI 5 ignores: it would start "
                "every rank in this pod without a warning. This variable is Open MPI 5's; --hostfile works with both.",
            )
        )
    box = container(o, "launcher", _mpirun(o), env, ports=[], with_devices=False)
    box["resources"] = Map(requests=Map(cpu="500m", memory="512Mi"), limits=Map(memory="512Mi"))
    box["resources"].note("requests", "For mpirun and an ssh connection to each worker; no rank runs here.")
    del box["volumeMounts"]
    spec = pod_spec(o, [box], restart=None, placed=False)
    for key in ("volumes", "nodeSelector", "tolerations"):
        spec.pop(key, None)
        spec.notes.pop(key, None)
    spec.add("nodeSelector", Map(o.system_selector) or None, "No rank runs here, so it needs no GPU node.")
    return Map(replicas=1, restartPolicy="Never", template=template(o, spec, has_ranks=False))


def _worker(o):
    ssh = [Item(name="ssh", containerPort=2222), Item(name="rendezvous", containerPort=o.port_base)]
    probe = Map(tcpSocket=Map(port="ssh"), periodSeconds=2)
    box = container(o, "worker", ["farandole", "sshd-init"], variables(o), ports=ssh, readinessProbe=probe)
    box.note(
        "command",
        "PID 1 is farandole's, because sshd ends on SIGTERM together with its ranks, which then never get the signal.",
    )
    box.note("readinessProbe", "The launcher waits until workers are ready; otherwise mpirun starts too early.")
    return Map(replicas=o.max_nodes, restartPolicy="Never", template=template(o, pod_spec(o, [box], restart=None)))


def mpijob(o):
    spec = Map(slotsPerWorker=o.processes, mpiImplementation={"openmpi": "OpenMPI", "mpich": "MPICH"}[o.implementation])
    spec.add(
        "launcherCreationPolicy",
        "WaitForWorkersReady",
        "Otherwise the launcher starts before its workers, fails, and uses up the backoff limit.",
    )
    spec.add("sshAuthMountPath", SSH, "The home of the image's user, which is not root.")
    spec["runPolicy"] = run_policy(o)
    spec["mpiReplicaSpecs"] = Map(Launcher=_launcher(o), Worker=_worker(o))
    before, after = around(o, service=False)
    return [*before, top("MPIJob", "kubeflow.org/v2beta1", o, spec), *after]


# --- Training Operator ----------------------------------------------------------------------------------------------


def _training_pod(o, name, port):
    box = container(
        o,
        name,
        run_command(o, processes=port != "pytorchjob-port"),
        variables(o),
        ports=[
            Item(
                name=port,
                containerPort=o.port_base,
                why="The operator passes this port to all pods. Without the name it uses a port outside the range.",
            )
        ],
    )
    return template(o, pod_spec(o, [box], restart=None))


def _replicas(o, count, name, port):
    made = Map(replicas=count, restartPolicy="ExitCode", template=_training_pod(o, name, port))
    return made.note(
        "restartPolicy",
        "Exit codes from 128 on are retried: 143 is a preemption, 200 to 204 are faults of peers or the network.",
    )


def pytorchjob(o):
    spec = Map(nprocPerNode=o.nproc)
    spec.note(
        "nprocPerNode",
        "Becomes PET_NPROC_PER_NODE. RANK in these pods is the pod's number and not a rank. "
        "`farandole run` derives ranks from it.",
    )
    if o.elastic:
        spec["elasticPolicy"] = Map(
            minReplicas=o.min_nodes, maxReplicas=o.max_nodes, rdzvBackend="c10d", maxRestarts=o.max_restarts
        )
        replicas = Map(Worker=_replicas(o, o.max_nodes, "pytorch", "pytorchjob-port"))
        replicas.note("Worker", "No Master, because the job could not continue without that pod.")
    else:
        replicas = Map(Master=_replicas(o, 1, "pytorch", "pytorchjob-port"))
        if o.max_nodes > 1:
            replicas["Worker"] = _replicas(o, o.max_nodes - 1, "pytorch", "pytorchjob-port")
    spec["runPolicy"] = run_policy(o)
    spec["pytorchReplicaSpecs"] = replicas
    before, after = around(o, service=False)
    return [*before, top("PyTorchJob", "kubeflow.org/v1", o, spec), *after]


def tfjob(o):
    replicas = Map(Chief=_replicas(o, 1, "tensorflow", "tfjob-port"))
    replicas.note(
        "Chief", "The chief is rank 0, and the workers follow. Parameter servers and evaluators are not ranks."
    )
    if o.max_nodes > 1:
        replicas["Worker"] = _replicas(o, o.max_nodes - 1, "tensorflow", "tfjob-port")
    spec = Map(runPolicy=run_policy(o), tfReplicaSpecs=replicas)
    before, after = around(o, service=False)
    return [*before, top("TFJob", "kubeflow.org/v1", o, spec), *after]


# --- Trainer v2 -----------------------------------------------------------------------------------------------------


def runtime_of(o):
    """(kind, name) of a TrainJob's runtime. The name of a cluster's runtime contains the namespace: all share it."""
    if not o.cluster_runtime:
        return "TrainingRuntime", f"{o.name}-runtime"
    return "ClusterTrainingRuntime", "-".join(filter(None, (o.namespace, o.name, "runtime")))


def training_runtime(o):
    box = container(o, "node", run_command(o, processes=False), variables(o))
    del box["args"]
    box["command"] = ["farandole", "run", "--", "true"]
    box.note("command", "The TrainJob replaces it.")
    job = Map(backoffLimit=0, podFailurePolicy=failure_policy(), template=template(o, pod_spec(o, [box])))
    node = Item(
        name="node",
        template=Map(metadata=Map(labels=Map({"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"})), spec=job),
    )
    policy = Map(numNodes=o.max_nodes, torch=Map())
    policy.note(
        "torch",
        "Gives every pod PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE and PET_MASTER_ADDR. A user may not "
        "set PET_ variables; the webhook refuses them.",
    )
    kind, name = runtime_of(o)
    meta = metadata(o, name, **{"trainer.kubeflow.org/framework": "torch"})
    if o.cluster_runtime:
        meta.pop("namespace", None)
    spec = Map(
        mlPolicy=policy,
        template=Map(
            spec=Map(
                network=Map(publishNotReadyAddresses=True),
                failurePolicy=job_set_failure_policy(o),
                replicatedJobs=[node],
            )
        ),
    )
    return Item(apiVersion="trainer.kubeflow.org/v1alpha1", kind=kind, metadata=meta, spec=spec)


def train_job_spec(o):
    words = run_command(o, processes=False)
    trainer = Map(image=o.image, command=words[:2], args=words[2:], numNodes=o.max_nodes, numProcPerNode=o.processes)
    needs = Map(cpu=int(o.cpus) if o.cpus.isdigit() else o.cpus, memory=o.memory, **devices(o))
    trainer["resourcesPerNode"] = Map(requests=needs, limits=Map(memory=o.memory, **devices(o)), **claimed(o))
    if o.efa:
        trainer.note(
            "resourcesPerNode",
            "Repeats EFA: Trainer up to 2.2 replaces the runtime's resources by these, "
            "and a job without the device falls back to TCP.",
        )
    kind, name = runtime_of(o)
    made = Map(runtimeRef=Map(apiGroup="trainer.kubeflow.org", kind=kind, name=name))
    made.add("activeDeadlineSeconds", values.seconds(o.max_runtime) if o.max_runtime else None)
    made.add("suspend", True if o.queue else None, "Kueue starts it.")
    made["trainer"] = trainer
    return made


def trainjob(o):
    before, after = around(o, service=False)
    spec = train_job_spec(o)
    return [*before, training_runtime(o), top("TrainJob", "trainer.kubeflow.org/v1alpha1", o, spec), *after]
