"""Katib: an Experiment whose trials are jobs of farandole."""

import copy

from .companions import around
from .document import Item, Map
from .gang import queue_labels
from .names import metadata
from .operators import mpijob, pytorchjob, train_job_spec, training_runtime
from .plain_kinds import indexed_job_spec

_TRIAL = "${trialParameters.trialName}"
_OPERATOR_CONDITIONS = {
    "successCondition": 'status.conditions.#(type=="Succeeded")#|#(status=="True")#',
    "failureCondition": 'status.conditions.#(type=="Failed")#|#(status=="True")#',
}
_TRAINER_CONDITIONS = {
    "successCondition": 'status.conditions.#(type=="Complete")#|#(status=="True")#',
    "failureCondition": 'status.conditions.#(type=="Failed")#|#(status=="True")#',
}


def _with_parameters(o):
    """The same options, with the searched parameters appended to the command."""
    other = copy.copy(o)
    other.command = [*o.command, *(f"--{name}=${{trialParameters.{name}}}" for name, *_ in o.parameter)]
    other.kind = o.trial
    other.network_policy = False  # one for all trials, beside the Experiment
    return other


def _job_trial(o):
    # All trials share one headless Service, in which each has its own pod names.
    spec = indexed_job_spec(o, f"{_TRIAL}-0.{o.name}:{o.port_base}", o.name, o.max_restarts)
    return (
        Map(apiVersion="batch/v1", kind="Job", spec=spec),
        "trainer",
        {"batch.kubernetes.io/job-completion-index": "0"},
    )


def _operator_trial(o):
    if o.trial == "trainjob":
        made = Map(apiVersion="trainer.kubeflow.org/v1alpha1", kind="TrainJob", spec=train_job_spec(o))
        return made, "node", {"batch.kubernetes.io/job-completion-index": "0"}
    documents = {"pytorchjob": pytorchjob, "mpijob": mpijob}[o.trial](o)
    top = next(document for document in documents if document["kind"].lower() == o.trial)
    made = Map(apiVersion=top["apiVersion"], kind=top["kind"], spec=top["spec"])
    if o.trial == "mpijob":
        return made, "launcher", {"training.kubeflow.org/job-role": "launcher"}
    return made, "pytorch", {"training.kubeflow.org/replica-type": "master"}


def _parameter(name, kind, *space):
    bounds = Map(min=space[0], max=space[1]) if len(space) == 2 else Map(list=space[0])
    return Item(name=name, parameterType=kind, feasibleSpace=bounds)


def _trial_template(o):
    inner = _with_parameters(o)
    trial, primary, pod_labels = _job_trial(inner) if o.trial == "job" else _operator_trial(inner)
    made = Map(primaryContainerName=primary, primaryPodLabels=Map(pod_labels))
    made.note("primaryPodLabels", "Katib reads the metric from this pod only. There, rank 0 alone prints it.")
    if o.trial == "trainjob":
        made.update(_TRAINER_CONDITIONS)
    elif o.trial != "job":
        made.update(_OPERATOR_CONDITIONS)
    made["trialParameters"] = [Item(name=name, reference=name) for name, *_ in o.parameter]
    if o.trial == "job":
        made["trialParameters"].append(
            Item(
                name="trialName",
                reference="${trialSpec.Name}",
                why="The name of the trial, whose pod 0 is the rendezvous.",
            )
        )
    if o.queue:
        queued = Map(labels=Map(queue_labels(o)))
        trial = Map(apiVersion=trial["apiVersion"], kind=trial["kind"], metadata=queued, spec=trial["spec"])
        trial.note("metadata", "Kueue starts each trial's job, which is created suspended.")
    made["trialSpec"] = trial
    return made


def katib(o):
    goal = Map(type="maximize" if o.maximize else "minimize", objectiveMetricName=o.metric)
    spec = Map(
        objective=goal,
        algorithm=Map(algorithmName="random"),
        parallelTrialCount=o.parallel_trials or min(3, o.trials),
        maxTrialCount=o.trials,
        maxFailedTrialCount=max(1, o.trials // 4),
    )
    spec["metricsCollectorSpec"] = Map(collector=Map(kind="StdOut"))
    spec.note(
        "metricsCollectorSpec",
        f"Rank 0 prints `{o.metric}=0.25`, which the collector's default filter finds. Katib runs "
        "the command in a shell that writes a file, so signals reach the shell first.",
    )
    spec["parameters"] = [_parameter(*parts) for parts in o.parameter]
    spec["trialTemplate"] = _trial_template(o)
    before, after = around(o, service=o.trial == "job", budget=False)
    runtime = [training_runtime(_with_parameters(o))] if o.trial == "trainjob" else []
    top = Item(apiVersion="kubeflow.org/v1beta1", kind="Experiment", metadata=metadata(o), spec=spec)
    return [*before, *runtime, top, *after]
