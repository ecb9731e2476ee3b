"""The pods of MPIJobs, as the MPI operator makes them."""

from fabric import CLUSTER
from pod_plans import Workload, meta_of, plan_of, variables


def add_hosts(pods, implementation, hosts, slots, key_folder):
    """Adds the host file and the SSH key, which every pod mounts."""
    colon = implementation in ("Intel", "MPICH")
    lines = [f"{host}:{slots}" if colon else f"{host} slots={slots}" for host in hosts]
    script = "#!/bin/sh\n" + "".join(f"echo {host}\n" for host in hosts)
    for pod in pods:
        pod.files = {
            "/etc/mpi/hostfile": ("\n".join(lines) + "\n", 0o444),
            "/etc/mpi/discover_hosts.sh": (script, 0o555),
            key_folder: ("ssh-key", 0o600),
        }


def mpi_job(document, _):
    name, namespace = meta_of(document)
    spec = document["spec"]
    implementation = spec.get("mpiImplementation", "OpenMPI")
    slots, specs = spec.get("slotsPerWorker", 1), spec["mpiReplicaSpecs"]
    launcher_works = spec.get("runLauncherAsWorker", False)
    workers = specs.get("Worker", {}).get("replicas", 0)
    hosts = ([f"{name}-launcher.{name}.{namespace}.svc"] if launcher_works else []) + [
        f"{name}-worker-{index}.{name}.{namespace}.svc" for index in range(workers)]  # fmt: skip
    said = {
        "OpenMPI": variables(
            OMPI_MCA_orte_keep_fqdn_hostnames="true",
            OMPI_MCA_orte_default_hostfile="/etc/mpi/hostfile",
            OMPI_MCA_plm_rsh_args="-o ConnectionAttempts=10",
            OMPI_MCA_orte_set_default_slots=slots,
        ),
        "Intel": variables(
            I_MPI_HYDRA_HOST_FILE="/etc/mpi/hostfile",
            I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS="-o ConnectionAttempts=10",
            I_MPI_PERHOST=slots,
        ),
        "MPICH": variables(HYDRA_HOST_FILE="/etc/mpi/hostfile", HYDRA_LAUNCH_EXTRA_ARGS="-o ConnectionAttempts=10"),
    }
    pods = []
    for index in range(workers):
        own = f"{name}-worker-{index}"
        labels = {"training.kubeflow.org/job-name": name, "training.kubeflow.org/job-role": "worker",
                  "training.kubeflow.org/replica-index": str(index + launcher_works)}  # fmt: skip
        pods.append(plan_of(own, specs["Worker"]["template"], namespace, labels, env=variables(K_MPI_JOB_ROLE="worker"),
                          hostname=own, subdomain=name, index=index, role="Worker", restart="Never",
                          default_command=("/usr/sbin/sshd", "-De")))  # fmt: skip
        # Hydra's processes connect to the launcher by its host name.
        searches = pods[-1].template.setdefault("dnsConfig", {}).setdefault("searches", [])
        searches.append(f"{name}.{namespace}.svc.{CLUSTER}")
    labels = {"training.kubeflow.org/job-name": name, "training.kubeflow.org/job-role": "launcher"}
    blank = [] if launcher_works else variables(NVIDIA_VISIBLE_DEVICES="", NVIDIA_DRIVER_CAPABILITIES="")
    pods.append(
        plan_of(
            f"{name}-launcher",
            specs["Launcher"]["template"],
            namespace,
            labels,
            hostname=f"{name}-launcher",
            subdomain=name,
            env=variables(K_MPI_JOB_ROLE="launcher") + said[implementation] + blank,
            random=True,
            role="launcher",
            restart="Never",
        )
    )
    add_hosts(pods, implementation, hosts, slots, spec.get("sshAuthMountPath", "/root/.ssh"))
    return Workload("MPIJob", name, namespace, pods, decides="launcher",
                    services=[(name, {"training.kubeflow.org/job-name": name}, True)],
                    in_order=spec.get("launcherCreationPolicy") == "WaitForWorkersReady")  # fmt: skip
