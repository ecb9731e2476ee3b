"""Tests of a spot interruption from AWS's notice to the successor: the rules of the shipped queue, a model of Karpenter
that drains the node, and an elastic job in simulated pods."""

import re

import podsim
import yaml
from farandole.integrations.kubernetes import generate
from manifest_checks import EKS, KUBERNETES

TEMPLATE = EKS / "cfn" / "spot-interruption-queue.yaml"
NOTICE = {
    "version": "0",
    "detail-type": "EC2 Spot Instance Interruption Warning",
    "source": "aws.ec2",
    "account": "111122223333",
    "region": "us-west-2",
    "resources": ["arn:aws:ec2:us-west-2a:instance/i-00000000000000001"],
    "detail": {"instance-id": "i-00000000000000001", "instance-action": "terminate"},
}
OTHERS = ["EC2 Instance Launch Successful", "EBS Volume Notification"]


def resources():
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda loader, tag, node: {tag: node.value})
    return yaml.load(TEMPLATE.read_text(), Loader)["Resources"]


def queued(event):
    """The messages that the rules of the template put into its queue for an event, by EventBridge's rules."""
    found = []
    for one in resources().values():
        if one["Type"] != "AWS::Events::Rule":
            continue
        pattern = one["Properties"]["EventPattern"]
        if all(event.get(key) in values for key, values in pattern.items()):
            found += [event for target in one["Properties"]["Targets"] if target["Arn"] == {"GetAtt": "Queue.Arn"}]
    return found


class Karpenter:
    """What Karpenter does with a notice: it taints the node, and evicts its pods with their own grace periods. It
    evicts none that do-not-disrupt or a disruption budget protects: those end with the node, and get no SIGTERM."""

    def __init__(self, sim, instances):
        self.sim, self.instances, self.tainted = sim, instances, set()

    def receive(self, message):
        node = message["detail"]["instance-id"]
        self.tainted.add(node)
        for pod in self.sim.living():
            if self.instances[pod.plan.index] == node:
                self.sim.held.add(pod.hostname)  # no other node is there yet, and this one takes no pods
                if self.may_evict(pod):
                    self.sim.evict(pod)

    def may_evict(self, pod):
        labels = pod.plan.labels
        for one in self.sim.documents:
            if one["kind"] == "PodDisruptionBudget":
                chosen = one["spec"]["selector"]["matchLabels"].items()
                there = sum(chosen <= other.plan.labels.items() for other in self.sim.living())
                if chosen <= labels.items() and there <= one["spec"]["minAvailable"]:
                    return False
        return "karpenter.sh/do-not-disrupt" not in pod.plan.annotations

    def add_node(self, index, instance):
        self.instances[index] = instance
        self.sim.release(f"train-{index}")


def test_k12_c7_the_queue_gets_the_notices_and_nothing_else_and_only_events_may_write_into_it():
    assert queued(NOTICE) == [NOTICE]
    for other in OTHERS:
        assert queued({**NOTICE, "detail-type": other}) == []
    allowed, denied = resources()["QueuePolicy"]["Properties"]["PolicyDocument"]["Statement"]
    assert allowed["Principal"] == {"Service": "events.amazonaws.com"} and allowed["Action"] == "sqs:SendMessage"
    assert denied["Effect"] == "Deny" and denied["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_k12_c7_a_notice_ends_the_rank_at_a_commit_and_its_successor_joins_on_another_node(simulate):
    words = "job --nnodes 1:2 --spot --image any -- python /app/train_elastic.py --steps 300 --step-seconds 0.04"
    sim = simulate(podsim.read(generate(words.split())), image={"/app": str(KUBERNETES)}, admission="restricted")
    karpenter = Karpenter(sim, {0: "i-00000000000000000", 1: "i-00000000000000001"})
    first, lost = sim.pod("train-0"), sim.pod("train-1")
    sim.wait(30, lambda: "step 50 " in first.output)
    (message,) = queued(NOTICE)
    karpenter.receive(message)
    assert lost.deadline and first.deadline is None
    sim.wait(20, lambda: lost.code is not None)
    assert lost.code == 143 and re.search(r"leaves after step \d+", lost.output), sim.logs()
    sim.wait(20, lambda: "train_elastic: 1 ranks, from step" in first.output)
    karpenter.add_node(1, "i-00000000000000002")
    sim.wait(30, lambda: first.output.count("train_elastic: 2 ranks, from step") == 2)
    sim.wait(60)
    assert sim.result("train") == "Complete" and first.main.codes == [0], sim.logs()
    assert "restoring" not in first.output, sim.logs()  # no step was repeated
    (continued,) = re.findall(r"train_elastic: 1 ranks, from step (\d+)", first.output)
    assert f"leaves after step {continued}\n" in lost.output, sim.logs()
