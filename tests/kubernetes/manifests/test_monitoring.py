"""Checks the queries of alerts, recorded series and the dashboard against the existing metrics."""

import json
import re
import shutil
import subprocess
import sys
import warnings

import pytest
import yaml
from manifest_checks import KUBERNETES, generated, only

HERE = KUBERNETES / "monitoring"
# The metrics that ranks export with their labels, without those that Prometheus and the PodMonitor add.
COMMON = {"namespace", "pod", "instance", "job", "app_kubernetes_io_instance"}
METRICS = {
    "farandole_operations_total": {"collective", "group"},
    "farandole_bytes_total": {"collective", "group"},
    "farandole_errors_total": {"collective", "group"},
    "farandole_operation_seconds_bucket": {"collective", "group", "le"},
    "farandole_operation_seconds_sum": {"collective", "group"},
    "farandole_operation_seconds_count": {"collective", "group"},
    "farandole_wait_seconds_bucket": {"collective", "group", "le"},
    "farandole_wait_seconds_sum": {"collective", "group"},
    "farandole_wait_seconds_count": {"collective", "group"},
    "farandole_stalls_total": {"group"},
    "farandole_rank_info": {"rank", "size", "local_rank", "host", "launcher", "transports", "version"},
}


def rule_groups():
    return yaml.safe_load((HERE / "rules.yaml").read_text())["spec"]["groups"]


def dashboard():
    return json.loads((HERE / "grafana-dashboard.json").read_text())


def dashboard_queries():
    """Yields (panel, query) with Grafana's own variables replaced as Grafana does."""
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "1m").replace("$job", ".*").replace("$namespace", ".*")
            assert "$" not in query
            yield panel["title"], query


def rule_queries():
    for group in rule_groups():
        for rule in group["rules"]:
            yield rule.get("record") or rule["alert"], rule["expr"]


QUERIES = [*dashboard_queries(), *rule_queries()]


@pytest.fixture(scope="module")
def promtool():
    program = shutil.which("promtool")
    if not program:
        warnings.warn(
            "queries were checked for names and brackets only: promtool is missing (Debian's package prometheus)",
            stacklevel=2,
        )
        pytest.skip("no promtool")
    return program


@pytest.mark.parametrize("title, query", QUERIES, ids=[title for title, _ in QUERIES])
def test_k10_a_query_uses_metrics_and_labels_that_exist(title, query):
    recorded = {rule["record"] for group in rule_groups() for rule in group["rules"] if "record" in rule}
    names = set(re.findall(r"farandole[\w:]*", re.sub(r'"[^"]*"', "", query)))
    assert names and names <= set(METRICS) | recorded, names - set(METRICS)
    labels = set().union(COMMON, *(METRICS.get(name, set()) for name in names))
    for inside in re.findall(r"(?:by|on)\s*\(([^)]*)\)", query):
        assert {word.strip() for word in inside.split(",")} <= labels
    for inside in re.findall(r"\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)) <= labels
    assert all(query.count(left) == query.count(right) for left, right in ("()", "{}", "[]"))


def test_k10_promtool_accepts_every_query_of_the_dashboard(promtool, tmp_path):
    rules = [{"record": f"panel_{n}", "expr": query} for n, (_, query) in enumerate(dashboard_queries())]
    (tmp_path / "dashboard.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", tmp_path / "dashboard.yaml"], capture_output=True, text=True)
    assert done.returncode == 0 and f"{len(rules)} rules found" in done.stdout, done.stdout + done.stderr


def test_k10_promtool_refuses_a_query_that_is_wrong(promtool, tmp_path):
    (tmp_path / "bad.yaml").write_text(
        yaml.safe_dump(
            {"groups": [{"name": "bad", "rules": [{"record": "bad", "expr": "rate(farandole_bytes_total)"}]}]}
        )
    )
    assert subprocess.run([promtool, "check", "rules", tmp_path / "bad.yaml"], capture_output=True).returncode != 0


def test_k10_alerts_and_records_pass_their_tests(promtool, tmp_path):
    (tmp_path / "rules.groups.yaml").write_text(yaml.safe_dump({"groups": rule_groups()}))
    shutil.copy(HERE / "rules.test.yaml", tmp_path)
    done = subprocess.run([promtool, "test", "rules", "rules.test.yaml"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_k10_every_alert_has_a_test():
    tested = set(re.findall(r"alertname: (\w+)", (HERE / "rules.test.yaml").read_text()))
    assert {rule["alert"] for group in rule_groups() for rule in group["rules"] if "alert" in rule} <= tested


def test_k10_the_dashboard_is_the_output_of_its_program():
    done = subprocess.run([sys.executable, HERE / "make_dashboard.py"], capture_output=True, text=True, check=True)
    assert done.stdout == (HERE / "grafana-dashboard.json").read_text()


def test_k10_the_panels_do_not_overlap():
    cells = [
        (x, y)
        for panel in dashboard()["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and all(x < 24 for x, _ in cells)


def test_k10_one_pod_monitor_for_all_and_one_for_each_job_find_the_same_ports():
    everywhere = yaml.safe_load((HERE / "podmonitor.yaml").read_text())["spec"]
    one = only(generated("job --nnodes 2 --nproc-per-node 8 --monitoring --image x -- y"), "PodMonitor")["spec"]
    assert [end["port"] for end in everywhere["podMetricsEndpoints"]] == [
        end["port"] for end in one["podMetricsEndpoints"]
    ]
    assert everywhere["podTargetLabels"] == one["podTargetLabels"] == ["app.kubernetes.io/instance"]
