"""A cluster for commands: simulated pods, shown by the stub of the API server, to real kubectl.

kubectl's apply and delete are stubs that act on the simulation; all that reads the cluster is kubectl itself.
"""

import os
import threading
import time

import yaml
from api_pods import pod as as_api_pod
from api_server import ApiServer

# $STUB/requests is read by the simulation, which writes $STUB/done after each line.
KUBECTL = """#!/bin/sh
case "$1" in
  apply|delete)
    echo "$@" >>"$STUB/requests"
    lines=$(wc -l <"$STUB/requests")
    while [ "$(cat "$STUB/done" 2>/dev/null)" != "$lines" ]; do sleep 0.05; done
    cat "$STUB/answer" ;;
  *) exec "$KUBECTL" "$@" ;;
esac
"""
GROUPS = {"batch/v1": ".batch", "apps/v1": ".apps", "policy/v1": ".policy", "v1": ""}


class Cluster:
    """`simulate(manifest)` makes the pods of the first manifest that is applied."""

    def __init__(self, folder, kubectl, simulate):
        self.folder, self.simulate, self.sim = folder, simulate, None
        self.api = ApiServer(folder)
        (folder / "bin").mkdir()
        self.stub("kubectl", KUBECTL)
        self.environment = {"STUB": str(folder), "KUBECTL": kubectl, "KUBECONFIG": str(self.api.config),
                            "KUBECACHEDIR": str(folder / "cache")}  # fmt: skip
        (folder / "requests").touch()
        self.shown, self.sent, self.over = {}, {}, threading.Event()
        self.failure = None
        self.thread = threading.Thread(target=self._live)
        self.thread.start()

    def stub(self, name, text):
        place = self.folder / "bin" / name
        place.write_text(text)
        place.chmod(0o755)

    def end(self):
        self.over.set()
        self.thread.join()
        self.api.end()
        if self.failure:
            raise self.failure

    def _live(self):
        """Carries out requests and lets time pass; the only thread that touches the simulation."""
        answered = 0
        try:
            while not self.over.is_set():
                for line in (self.folder / "requests").read_text().splitlines()[answered:]:
                    answered += 1
                    (self.folder / "answer").write_text("".join(f"{one}\n" for one in self._answer(line.split())))
                    (self.folder / "done").write_text(str(answered))
                if self.sim:
                    self.sim.step()
                    self._show()
                time.sleep(0.02)
        except BaseException as error:
            self.failure = error
            (self.folder / "answer").write_text(f"the simulation failed: {error!r}\n")
            (self.folder / "done").write_text(str(answered))

    def _answer(self, words):
        if words[1] == "pod":
            self.sim.evict(self.sim.pod(words[2]))
            return [f"pod/{words[2]}"]
        documents = list(yaml.safe_load_all((self.folder / words[2]).read_text()))
        names = [f"{one['kind'].lower()}{GROUPS[one['apiVersion']]}/{one['metadata']['name']}" for one in documents]
        if words[0] == "delete":
            return names
        self.sim = self.simulate(documents)
        self._show()
        return [f"{name} created" for name in names]

    def _show(self):
        """Puts what has changed into the API server: lines before the end of their pod."""
        job = next(one for one in self.sim.workloads if one.kind == "Job")
        for number, one in enumerate(self.sim.pods):
            log = one.output.splitlines(keepends=True)
            whole = len(log) - (1 if log and not log[-1].endswith("\n") else 0)
            lines = [line.rstrip("\n") for line in log[self.sent.get(one.name, 0) : whole]]
            if lines:
                self.api.write(one.name, *lines)
                self.sent[one.name] = whole
            if one.sandbox is None:
                continue
            state = (one.phase, one.code, one.terminating)
            if self.shown.get(one.name) != state:
                self.shown[one.name] = state
                found = as_api_pod(one.plan.index, code=one.code, name=one.name, made=str(number))
                found["spec"]["nodeName"] = f"node-of-{one.hostname}"
                if one.terminating and one.code is None:
                    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                self.api.put_pod(found)
                if one.terminating and one.code is not None:
                    self.api.delete("pods", one.name)
        conditions = self.sim.conditions(job.name)
        if self.shown.get("conditions") != conditions:
            self.shown["conditions"] = conditions
            true = [{"type": word, "status": "True", "reason": reason} for word, reason in conditions.items()]
            self.api.put("jobs", {"kind": "Job", "metadata": {"name": job.name}, "spec": {},
                                  "status": {"conditions": true}})  # fmt: skip


def path_for(cluster, python):
    """PATH of a user's shell: the stubs, farandole, and the system's programs."""
    return f"{cluster.folder / 'bin'}:{os.path.dirname(python)}:/usr/bin:/bin"
