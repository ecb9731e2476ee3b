"""Computes the pods of a workload, with the names, labels, variables and host names that its controller assigns.

The functions are pure: they turn manifests into PodPlans. The rules restate those of Kubernetes (Job, StatefulSet,
Deployment), JobSet, LeaderWorkerSet, the training operator (PyTorchJob, TFJob), the trainer (TrainJob) and the MPI
operator.
"""

from kubeflow_kinds import pytorch_job, tf_job, train_job
from kubernetes_kinds import deployment, job, job_set, leader_worker_set, stateful_set
from mpi_operator import mpi_job
from pod_plans import Workload, meta_of, plan_of

CONTROLLERS = {
    "Job": job,
    "StatefulSet": stateful_set,
    "Deployment": deployment,
    "JobSet": job_set,
    "LeaderWorkerSet": leader_worker_set,
    "PyTorchJob": pytorch_job,
    "TFJob": tf_job,
    "TrainJob": train_job,
    "MPIJob": mpi_job,
}


def workloads(documents):
    """The workloads of these objects; a Pod is a workload of its own."""
    made = []
    for document in documents:
        if document["kind"] in CONTROLLERS:
            made.append(CONTROLLERS[document["kind"]](document, documents))
        elif document["kind"] == "Pod":
            name, namespace = meta_of(document)
            pod = plan_of(name, document, namespace, document["metadata"].get("labels", {}))
            made.append(Workload("Pod", name, namespace, [pod]))
    return made
