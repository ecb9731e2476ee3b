"""A step of Kubeflow Pipelines that runs a farandole job over several pods, and fails if the job fails.

    python train_pipeline.py train_pipeline.yaml      # compiled: upload it, or submit it with kfp.Client()

The step itself is one small pod: it prints the job's manifest, applies it, and follows its logs until it ends. Its image has
farandole and kubectl; its service account may make Jobs, Services and PodDisruptionBudgets and read pods and their logs
(step-role.yaml).
"""

import sys

from kfp import compiler, dsl

# Values arrive as $1, $2, ...: none of them becomes part of the script. The job is named after the run, so that runs do not
# interfere; objects of an earlier attempt of this run are deleted first. `logs` exits with the code of the job.
SCRIPT = """
set -eu
name=$1 nodes=$2 per_node=$3 image=$4 checkpoint=$5 account=$6 epochs=$7
farandole kubernetes gen job --name "$name" --nnodes "$nodes" --nproc-per-node "$per_node" --image "$image" \
  --service-account "$account" -- python /app/train_torch.py --epochs "$epochs" --checkpoint "$checkpoint" >/tmp/job.yaml
kubectl delete --ignore-not-found -f /tmp/job.yaml
kubectl apply -f /tmp/job.yaml
farandole kubernetes logs "$name" --follow
"""


@dsl.container_component
def train(name: str, nodes: int, per_node: int, image: str, checkpoint: str, account: str, epochs: int):
    return dsl.ContainerSpec(
        image="farandole-kubectl:0.1.0",
        command=["sh", "-c", SCRIPT, "train"],
        args=[name, nodes, per_node, image, checkpoint, account, epochs],
    )


@dsl.pipeline(
    name="farandole-training", description="Trains over several pods; the checkpoint is what later steps read"
)
def pipeline(
    checkpoint: str,
    nodes: int = 2,
    per_node: int = 1,
    image: str = "farandole-torch:0.1.0",
    account: str = "s3-trainer",
    epochs: int = 10,
):
    # {{$.pipeline_job_uuid}}: kfp fills it in when the pipeline runs.
    step = train(
        name=f"train-{dsl.PIPELINE_JOB_ID_PLACEHOLDER}",
        nodes=nodes,
        per_node=per_node,
        image=image,
        checkpoint=checkpoint,
        account=account,
        epochs=epochs,
    )
    step.set_caching_options(False)  # another run is another job, even with the same parameters
    step.set_retry(2)


if __name__ == "__main__":
    compiler.Compiler().compile(pipeline, sys.argv[1])
