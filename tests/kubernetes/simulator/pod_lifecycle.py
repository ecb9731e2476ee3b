"""Decides which pods exist, and what happens to those that end, restart or are scaled away."""

import copy
import time

import controllers
from admission import violations
from job_rules import JobState
from pod import Pod
from scheduler import group_of

REFUSED_AGAIN_S = 0.2  # on a cluster seconds, and more each time


class PodLifecycle:
    def __init__(self, sim):
        self.sim = sim
        self.due = []  # (when, workload, plan): pods to create
        self.states = {id(one): JobState(one.job, len(one.pods)) for one in sim.workloads if one.job}
        self.restarts = {}

    def create(self, workload):
        limit = workload.job.get("parallelism", 1 << 30) if workload.kind == "Job" else 1 << 30
        now = time.monotonic()
        self.due += [(now, workload, plan) for plan in workload.pods[:limit]]

    def begin_due(self):
        now = time.monotonic()
        for one in list(self.due):
            when, workload, plan = one
            if when > now or (plan.hostname or plan.stem) in self.sim.held:
                continue
            if workload.in_order and not self._turn_of(workload, plan):
                continue
            self.due.remove(one)
            if self._is_refused(plan):
                self.due.append((now + REFUSED_AGAIN_S, workload, plan))
                continue
            pod = Pod(self.sim, workload, plan)
            self.sim.pods.append(pod)
            if self.sim.scheduler is None:
                pod.start()
        self._schedule()

    def _schedule(self):
        """Gives nodes to pods without one, and preempts others for them."""
        if self.sim.scheduler is None:
            return
        waiting = [(pod, pod.plan) for pod in self.sim.living() if pod.sandbox is None]
        if not waiting:
            return
        running = self.sim.running()
        here = [one[0] for one in running]
        begun = [group_of(pod.plan) for pod in self.sim.pods if pod in here or pod.phase == "Succeeded"]
        for pod, decision in self.sim.scheduler.schedule(waiting, running, begun):
            pod.unschedulable = decision.reason
            if decision.node:
                pod.bind(self.sim.scheduler.nodes[decision.node])
                pod.start()
            for victim in decision.victims:
                if not victim.terminating:
                    victim.conditions.add("DisruptionTarget")
                    victim.preempted_by = pod.name
                    victim.terminate()

    def _is_refused(self, plan):
        """Whether Pod Security admission refuses the pod. Its controller then tries again."""
        found = violations(plan.template, self.sim.admission)
        if found:
            level = f'violates PodSecurity "{self.sim.admission}"'
            self.sim.refusals.append(f'pods "{plan.stem}" is forbidden: {level}: {", ".join(found)}')
        return bool(found)

    def _turn_of(self, workload, plan):
        earlier = workload.pods[: workload.pods.index(plan)]
        return all(
            any(pod.plan is one and (pod.ready or pod.phase == "Succeeded") for pod in self.sim.living())
            for one in earlier
        )

    # ---- Ends of pods ----

    def container_ended(self, pod, container):
        policy = pod.plan.restart
        again = not pod.terminating and (
            policy == "Always" and not container.is_init or policy != "Never" and container.code
        )
        if again:
            container.again_at = time.monotonic() + self._crash_delay(container)
            self._group_is_hit(pod)
            return
        if pod.phase in ("Succeeded", "Failed"):
            if container.code == 0 and container.is_init:
                return
            code = (
                container.code
                if container.is_init
                else max((one.code or 0 for one in pod.containers if not one.is_init), key=abs)
            )
            self._pod_ended(pod, code, container.name)

    def _crash_delay(self, container):
        """A kubelet doubles the delay with each end of a container, up to 30 times the first: 10 s to 5 min."""
        return self.sim.crash_backoff_s * min(2 ** (len(container.codes) - 1), 30)

    def _pod_ended(self, pod, code, container):
        workload = pod.workload
        pod.end()
        if workload.name in self.sim.results:
            return
        if code >= 128 and pod.plan.exit_codes:
            self._replace(workload, pod.plan)
        elif workload.first_decides and code == 0:
            self._conclude(workload, "Complete")
        elif workload.decides:
            if pod.plan.role == workload.decides and pod.plan.index == 0 or (code != 0 and pod.plan.restart == "Never"):
                self._conclude(workload, "Complete" if code == 0 else f"Failed: {pod.name} ended with {code}")
        elif workload.job:
            self._job_pod_ended(workload, pod, code, container)
        elif workload.kind in ("StatefulSet", "Deployment", "LeaderWorkerSet"):
            if any(plan is pod.plan for plan in workload.pods) and not pod.replaced:  # and not scaled away
                self._replace(workload, pod.plan)
            self._group_is_hit(pod)
        elif all(one.phase == "Succeeded" for one in self.sim.pods if one.workload is workload):
            self._conclude(workload, "Complete")
        elif code != 0:
            self._conclude(workload, f"Failed: {pod.name} ended with {code}")

    def deleted(self, pod):
        """A ReplicaSet counts no pod that terminates, so its successor comes at once."""
        if pod.workload.kind == "Deployment" and any(plan is pod.plan for plan in pod.workload.pods):
            pod.replaced = True
            self._replace(pod.workload, pod.plan)

    def forget(self, pod):
        pod.forgotten = True
        if pod.workload.job:
            self._job_pod_ended(pod.workload, pod, 137, pod.main.name)
        elif any(plan is pod.plan for plan in pod.workload.pods) and not pod.replaced:
            self._replace(pod.workload, pod.plan)

    def _job_pod_ended(self, workload, pod, code, container):
        state = self.states[id(workload)]
        if pod.plan not in workload.pods:  # its index was removed
            return
        word = state.pod_ended(pod.plan.index, code, pod.conditions, container)
        if word == "done":
            self._conclude(workload, "Complete")
        elif word == "failed":
            if workload.recreate_all and self.restarts.get(workload.name, 0) < workload.max_restarts:
                self._recreate(workload)
            else:
                self._conclude(workload, f"Failed: {state.reason}")
        elif word == "again":
            self._replace(workload, pod.plan, state.delay(pod.plan.index, self.sim.backoff_s))
        else:
            begun = {id(one.plan) for one in self.sim.pods} | {id(plan) for _, _, plan in self.due}
            waiting = [plan for plan in workload.pods if id(plan) not in begun]
            if waiting:
                self.due.append((time.monotonic(), workload, waiting[0]))

    def _replace(self, workload, plan, delay=None):
        self.due.append((time.monotonic() + (self.sim.backoff_s if delay is None else delay), workload, plan))

    def _group_is_hit(self, pod):
        """LeaderWorkerSet: when one pod restarts, its whole group is recreated."""
        workload = pod.workload
        if workload.kind != "LeaderWorkerSet" or not workload.recreate_all:
            return
        group = "leaderworkerset.sigs.k8s.io/group-index"
        for other in self.sim.living():
            if other.workload is workload and other.plan.labels[group] == pod.plan.labels[group]:
                other.end()
                if all(plan is not other.plan for _, _, plan in self.due):
                    self._replace(workload, other.plan)

    def _recreate(self, workload):
        """JobSet: recreates all child Jobs with the next attempt number."""
        attempt = self.restarts[workload.name] = self.restarts.get(workload.name, 0) + 1
        for pod in self.sim.living():
            if pod.workload is workload:
                pod.end()
        self.states[id(workload)] = JobState(workload.job, len(workload.pods))
        for plan in workload.pods:
            plan.labels["jobset.sigs.k8s.io/restart-attempt"] = str(attempt)
            plan.annotations["jobset.sigs.k8s.io/restart-attempt"] = str(attempt)
            self._replace(workload, plan)

    def _conclude(self, workload, result):
        self.sim.results[workload.name] = result
        for pod in self.sim.living():
            if pod.workload is workload and not pod.gone:
                pod.terminate(3 if workload.decides else None)
        self.due = [one for one in self.due if one[1] is not workload]

    def conditions_of(self, workload):
        """{type: reason} of the object's conditions that are true. A Job is Complete or Failed only when all of its
        pods have ended."""
        mine = [pod for pod in self.sim.pods if pod.workload is workload]
        if workload.kind == "Job":
            state = self.states[id(workload)]
            if all(pod.gone or pod.forgotten or pod.phase in ("Succeeded", "Failed") for pod in mine):
                state.finish()
            return dict(state.conditions)
        if workload.kind == "Deployment":
            ready = sum(pod.ready for pod in mine if not pod.gone)
            return {"Available": "MinimumReplicasAvailable"} if ready >= len(workload.pods) else {}
        result = self.sim.results.get(workload.name, "")
        if workload.kind in ("PyTorchJob", "TFJob", "MPIJob"):
            word = {"Complete": "Succeeded"}.get(result, result.partition(":")[0] or "Running")
            return {word: f"{workload.kind}{word}"}
        return {result.partition(":")[0]: result.partition(": ")[2]} if result else {}

    # ---- scaling ----

    def scale(self, name, count):
        """For an elastic Indexed Job parallelism and completions change together, and the highest indexes end
        first. For a
        Deployment the youngest pods end first."""
        workload = next(one for one in self.sim.workloads if one.name == name)
        if workload.kind == "Deployment":
            return self._scale_deployment(workload, count)
        workload.job["parallelism"] = workload.job["completions"] = count
        document = {"kind": "Job", "metadata": {"name": name, "namespace": workload.namespace}, "spec": workload.job}
        wanted = controllers.job(document, self.sim.documents).pods
        for plan in wanted[len(workload.pods) :]:
            workload.pods.append(plan)
            self.due.append((time.monotonic(), workload, plan))
        for pod in self.sim.living():
            if pod.workload is workload and pod.plan.index >= count:
                pod.terminate()
        workload.pods = workload.pods[:count]
        self.states[id(workload)].count = count

    def _scale_deployment(self, workload, count):
        while len(workload.pods) < count:
            workload.pods.append(copy.copy(workload.pods[0]))
            self.due.append((time.monotonic(), workload, workload.pods[-1]))
        gone, workload.pods = workload.pods[count:], workload.pods[:count]
        self.due = [one for one in self.due if all(one[2] is not plan for plan in gone)]
        for pod in self.sim.living():
            if any(pod.plan is plan for plan in gone):
                pod.terminate()
