"""The NetworkPolicy of a job's pods, for tests."""

FIRST, LAST = 29500, 29563
POD = {"podSelector": {"matchLabels": {"job-name": "train"}}}
DNS = {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
               "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}],
       "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}  # fmt: skip


def policy(first=FIRST, last=LAST):
    """A policy that admits only this job's pods on its ports, and DNS."""
    ports = [{"protocol": "TCP", "port": first, "endPort": last}]
    return {"kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": "train"},
            "spec": {**POD, "policyTypes": ["Ingress", "Egress"], "ingress": [{"from": [POD], "ports": ports}],
                     "egress": [{"to": [POD], "ports": ports}, DNS]}}  # fmt: skip
