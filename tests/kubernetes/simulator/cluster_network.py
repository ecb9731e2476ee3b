"""Computes the DNS records of the pods and applies NetworkPolicies to them."""

from fabric import CLUSTER, firewall, selects


class ClusterNetwork:
    def __init__(self, sim):
        self.sim = sim
        self.published = None
        self.walls = {}  # pod's name -> its rules

    def services(self):
        """Yields (name, namespace, selector, publish pods that are not ready) of the headless services."""
        for one in self.sim.documents:
            if one["kind"] == "Service" and one["spec"].get("clusterIP") == "None":
                spec = one["spec"]
                yield (one["metadata"]["name"], one["metadata"].get("namespace", "default"), spec.get("selector"),
                       spec.get("publishNotReadyAddresses", False))  # fmt: skip
        for workload in self.sim.workloads:
            for name, selector, unready in workload.services:
                yield name, workload.namespace, selector, unready

    def records(self):
        """All DNS records: services, the pods behind them, and the services that operators create for pods."""
        records = {}
        # What became of a pod whose node is cut off is not known.
        up = [pod for pod in self.sim.living() if pod.addresses and (pod.phase == "Running" or pod.cut_off)]
        seen_ready = {id(pod): pod.ready for pod in up if pod.main.spec.get("readinessProbe") or pod.main.running}
        for name, namespace, selector, unready in self.services():
            if not selector:
                continue
            for pod in up:
                if pod.plan.namespace != namespace or not selects({"matchLabels": selector}, pod.plan.labels):
                    continue
                # With publishNotReadyAddresses a pod that terminates keeps its record until it is deleted.
                ready = seen_ready.get(id(pod)) and not pod.terminating
                if pod.hostname in self.sim.hidden or not (unready or ready):
                    continue
                addresses = self.sim.wrong.get(pod.hostname, pod.addresses)
                records.setdefault(f"{name}.{namespace}.svc.{CLUSTER}", []).extend(addresses)
                if pod.plan.subdomain == name:
                    for own in pod.names:
                        records[own] = addresses
        for pod in up:
            shown = seen_ready.get(id(pod)) and not pod.terminating and pod.hostname not in self.sim.hidden
            if pod.plan.with_service and shown:
                records[f"{pod.plan.stem}.{pod.plan.namespace}.svc.{CLUSTER}"] = self.sim.wrong.get(
                    pod.hostname, pod.addresses
                )
        return records

    def resolves(self, name, namespace):
        return f"{name}.{namespace}.svc.{CLUSTER}" in (self.published or {})

    def refresh(self):
        records = self.records()
        if records != self.published:
            self.published = records
            self.sim.fabric.publish(records)
        self._raise_walls()

    def _raise_walls(self):
        policies = [one for one in self.sim.documents if one["kind"] == "NetworkPolicy"]
        if not policies:
            return
        where = lambda namespace: {"kubernetes.io/metadata.name": namespace}  # noqa: E731
        pods = [pod for pod in self.sim.living() if pod.addresses]
        everyone = [(pod.plan.namespace, where(pod.plan.namespace), pod.plan.labels, pod.addresses) for pod in pods]
        everyone.append(("kube-system", where("kube-system"), {"k8s-app": "kube-dns"}, ["198.18.0.1", "fd18::1"]))
        for pod in pods:
            rules = firewall(policies, pod.plan.namespace, pod.plan.labels, everyone)
            if rules and self.walls.get(pod.name) != rules:
                self.walls[pod.name] = rules
                pod.enforce(rules)
