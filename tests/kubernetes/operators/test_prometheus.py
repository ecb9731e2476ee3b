"""Tests a real Prometheus, which finds pods by name, scrapes the metrics of their ranks, and answers queries."""

import json
import re
import shutil

import builders
import pytest
from training_jobs import starter

PORT = 9400
CONFIG = f"""
global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}
scrape_configs:
- job_name: farandole
  dns_sd_configs:
  - {{names: [train.default.svc.cluster.local], type: A, port: {PORT}, refresh_interval: 500ms}}
  - {{names: [train.default.svc.cluster.local], type: A, port: {PORT + 1}, refresh_interval: 500ms}}
"""
PAGE = f"http://127.0.0.1:{PORT}/metrics"


def prometheus():
    """A pod with Prometheus, and its configuration as an object."""
    command = [
        "prometheus",
        "--config.file=/etc/prometheus-test/prometheus.yml",
        "--storage.tsdb.path=/data-prometheus",
        "--web.listen-address=127.0.0.1:9090",
        "--storage.tsdb.retention.time=1h",
    ]
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "prometheus"},
        "spec": builders.pod_spec(
            command,
            volumes=[{"name": "c", "configMap": {"name": "prometheus"}}, {"name": "d", "emptyDir": {}}],
            container_volumeMounts=[
                {"name": "c", "mountPath": "/etc/prometheus-test"},
                {"name": "d", "mountPath": "/data-prometheus"},
            ],
        ),
    }
    return [
        {
            "kind": "ConfigMap",
            "apiVersion": "v1",
            "metadata": {"name": "prometheus"},
            "data": {"prometheus.yml": CONFIG},
        },
        pod,
    ]


def fetch(pod, address):
    code = "import sys, urllib.request\nprint(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"
    done = pod.exec("python3", "-I", "-c", code, address)
    return done.stdout if done.returncode == 0 else ""


def ask(pod, question):
    """Prometheus's answer to a query: {relevant labels: value}."""
    from urllib.parse import quote

    said = fetch(pod, f"http://127.0.0.1:9090/api/v1/query?query={quote(question)}")
    found = json.loads(said)["data"]["result"] if said else []
    return {
        tuple(
            sorted(
                (key, value) for key, value in one["metric"].items() if key in ("rank", "collective", "group", "host")
            )
        ): float(one["value"][1])
        for one in found
    }


def value(page, name, **labels):
    for line in page.splitlines():
        found = re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line)
        if found and all(f'{key}="{text}"' in found.group(1) for key, text in labels.items()):
            return float(found.group(2))
    return None


@pytest.fixture(scope="module")
def scraped():
    if not shutil.which("prometheus"):
        pytest.skip("needs Debian's prometheus (apt-get install --no-install-recommends prometheus)")


def test_prometheus_scrapes_all_ranks_of_two_pods_and_answers(simulate, scraped):
    run = [*starter(2, "$(JOB_COMPLETION_INDEX)", "train-0.train:29500"), "--steps", "2000", "--step-seconds", "0.02"]
    served = {"FARANDOLE_METRICS_PORT": PORT, "FARANDOLE_METRICS_ADDRESS": "*"}
    sim = simulate([*builders.indexed_job(2, run, env=served), *prometheus()])
    pod = sim.pod("prometheus")
    sim.wait(40, lambda: pod.main.pid and len(ask(pod, "farandole_rank_info == 1")) == 4)
    # 1. Which ranks run, and where?
    hosts = ask(pod, "count by (host) (farandole_rank_info)")
    assert hosts == {(("host", "train-0"),): 2, (("host", "train-1"),): 2}
    # 2. How many collectives of each kind run per second?
    per_kind = "sum by (collective, group) (rate(farandole_operations_total[5s]))"
    allreduces = (("collective", "allreduce"), ("group", "all"))
    sim.wait(20, lambda: ask(pod, per_kind).get(allreduces, 0) > 0)
    rates = ask(pod, per_kind)
    assert rates[allreduces] > 0
    # 3. What is the 90th percentile of their duration?
    times = ask(pod, "histogram_quantile(0.9, sum by (le, collective) (rate(farandole_operation_seconds_bucket[5s])))")
    assert 0 < times[(("collective", "allreduce"),)] < 10
    print("\n", hosts, rates, times)
    # The page of one rank: two allreduces a step, of 65 x 10 doubles and of one.
    page = fetch(sim.pod("train-0"), PAGE)
    steps = value(page, "farandole_operations_total", collective="allreduce", group="all")
    assert (
        steps > 10
        and abs(value(page, "farandole_bytes_total", collective="allreduce") / steps - (650 * 8 + 8) / 2) < 600
    )
    assert value(page, "farandole_errors_total", collective="allreduce") == 0
    assert value(page, "farandole_operation_seconds_count", collective="allreduce") == steps
    assert value(page, "farandole_wait_seconds_count", collective="allreduce") >= steps
    assert value(page, "farandole_stalls_total", group="all") == 0
    assert (
        value(page, "farandole_rank_info", rank="0", size="4", local_rank="0", host="train-0", transports="shm+tcp")
        == 1
    )
    assert (
        value(fetch(sim.pod("train-0"), PAGE.replace(str(PORT), str(PORT + 1))), "farandole_rank_info", rank="1") == 1
    )


def test_promtool_accepts_the_names_of_metrics(simulate, scraped):
    run = [*starter(1, "0", "train-0.train:29500", 1), "--steps", "2000", "--step-seconds", "0.02"]
    sim = simulate(builders.indexed_job(1, run, env={"FARANDOLE_METRICS_PORT": PORT}))
    pod = sim.pods[0]
    sim.wait(20, lambda: pod.main.pid and "farandole_wait_seconds" in fetch(pod, PAGE))
    done = pod.exec("sh", "-c", "python3 -I -c \"import urllib.request as u; "
                                f"print(u.urlopen('{PAGE}').read().decode(), end='')\" | "
                    "grep -E 'farandole_' | promtool check metrics")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_port_that_is_taken_is_one_line_and_no_failure(simulate):
    taken = ("import socket, subprocess, sys\ns = socket.create_server(('::', int(sys.argv[1])), "
             "family=socket.AF_INET6, dualstack_ipv6=True)\n"
             "sys.exit(subprocess.call(sys.argv[2:]))")  # fmt: skip
    run = ["python", "-c", taken, str(PORT), *starter(1, "0", "train-0.train:29500")]
    sim = simulate(builders.indexed_job(1, run, env={"FARANDOLE_METRICS_PORT": PORT}))
    sim.wait(30)
    pod = sim.pods[0]
    assert sim.result("train") == "Complete", sim.logs()
    (line,) = [one for one in pod.output.splitlines() if "metrics" in one]
    assert (
        f"metrics on port {PORT}" in line
        and "set FARANDOLE_METRICS_PORT to a free port" in line
        and "goes on without the metrics of rank 0" in line
    )


def test_no_port_is_opened_unless_one_is_set(simulate):
    run = [*starter(1, "0", "train-0.train:29500", 1), "--steps", "2000", "--step-seconds", "0.02"]
    sim = simulate(builders.indexed_job(1, run))
    sim.wait(20, lambda: "step 2" in sim.pods[0].output)
    assert not sim.pods[0].listens(PORT)
    assert "libfarandole_metrics" not in sim.pods[0].exec("sh", "-c", "cat /proc/[0-9]*/maps").stdout
