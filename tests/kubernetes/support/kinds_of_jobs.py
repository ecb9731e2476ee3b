"""The kinds of jobs with the options that tests of the generator give them."""

AFTER = "--image farandole:0.1.0 -- python train.py"


EVERYTHING = (
    "--nproc-per-node 4 --instance-type p4d.24xlarge --efa all --gpus 4 --cpus 16 --memory 64Gi --shm 8Gi "
    "--hugepages-2mi 5120Mi --spot --pvc data:/data:ro --new-pvc checkpoints:/checkpoints:100Gi --storage-class "
    "fsx --config-map scripts:/scripts --monitoring --json-logs --env A=b --label team=x --annotation n=o "
    "--node-selector a=b --toleration dedicated=x:NoSchedule --priority-class high --max-runtime 12h "
    "--namespace ml"
)


KINDS = {
    "job": "job --nnodes 4",
    "elastic job": "job --nnodes 2:4",
    "jobset": "jobset --nnodes 4",
    "statefulset": "statefulset --nnodes 4",
    "deployment": "deployment --nnodes 2:4",
    "lws": "lws --nnodes 4",
    "mpijob": "mpijob --nnodes 2",
    "mpich job": "mpijob --nnodes 2 --implementation mpich",
    "pytorchjob": "pytorchjob --nnodes 4",
    "one pytorch pod": "pytorchjob --nnodes 1",
    "elastic pytorchjob": "pytorchjob --nnodes 2:4",
    "tfjob": "tfjob --nnodes 3",
    "trainjob": "trainjob --nnodes 2",
    "rayjob": "rayjob --nnodes 2",
    "katib job": "katib --parameter lr:double:0.001:0.1",
    "katib pytorchjob": "katib --trial pytorchjob --nnodes 2 --parameter lr:double:0.001:0.1",
    "katib mpijob": "katib --trial mpijob --nnodes 2 --parameter lr:double:0.001:0.1",
    "katib trainjob": "katib --trial trainjob --nnodes 2 --parameter layers:int:1:4",
}


def everything(kind):
    """All options that the kind does not refuse; test_options.py has the others."""
    words = EVERYTHING
    if any(word in kind for word in ("mpijob", "rayjob")):
        words = words.replace("--json-logs ", "")
    if any(word in kind for word in ("statefulset", "deployment", "lws")):
        words = words.replace("--max-runtime 12h ", "")
    return words
