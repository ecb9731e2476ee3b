"""Writes grafana-dashboard.json from the table below, which has one row for each panel.

python examples/kubernetes/monitoring/make_dashboard.py > examples/kubernetes/monitoring/grafana-dashboard.json
"""

import json

JOB = 'app_kubernetes_io_instance=~"$job", namespace=~"$namespace"'
BUCKETS = f"farandole_operation_seconds_bucket{{{JOB}}}[$__rate_interval]"
# title, unit, width (of 24), kind, [(query, legend)]
PANELS = [
    ("Ranks", "short", 4, "stat", [(f"count(farandole_rank_info{{{JOB}}})", "ranks")]),
    ("Errors in 5 min", "short", 4, "stat", [(f"sum(increase(farandole_errors_total{{{JOB}}}[5m]))", "errors")]),
    ("Stalls in 5 min", "short", 4, "stat", [(f"sum(increase(farandole_stalls_total{{{JOB}}}[5m]))", "stalls")]),
    (
        "Bytes per second, all ranks",
        "Bps",
        12,
        "timeseries",
        [(f"sum by (collective) (rate(farandole_bytes_total{{{JOB}}}[$__rate_interval]))", "{{collective}}")],
    ),
    (
        "Operations per second, slowest and fastest rank",
        "ops",
        12,
        "timeseries",
        [
            (f"min(sum by (pod, instance) (rate(farandole_operations_total{{{JOB}}}[$__rate_interval])))", "slowest"),
            (f"max(sum by (pod, instance) (rate(farandole_operations_total{{{JOB}}}[$__rate_interval])))", "fastest"),
        ],
    ),
    (
        "Time of an operation",
        "s",
        12,
        "timeseries",
        [
            (
                f"histogram_quantile(0.5, sum by (collective, le) (rate({BUCKETS})))",
                "{{collective}} median",
            ),
            (
                f"histogram_quantile(0.99, sum by (collective, le) (rate({BUCKETS})))",
                "{{collective}} p99",
            ),
        ],
    ),
    (
        "Waiting for other ranks, share of the time",
        "percentunit",
        12,
        "timeseries",
        [
            (
                f"sum by (pod) (rate(farandole_wait_seconds_sum{{{JOB}}}[$__rate_interval])) / "
                f"(sum by (pod) (rate(farandole_operation_seconds_sum{{{JOB}}}[$__rate_interval])) > 0)",
                "{{pod}}",
            )
        ],
    ),
    (
        "The five ranks that make others wait: they wait least",
        "s",
        12,
        "timeseries",
        [
            (
                f"bottomk(5, sum by (pod, instance) (rate(farandole_wait_seconds_sum{{{JOB}}}[5m])))",
                "{{pod}} {{instance}}",
            )
        ],
    ),
    (
        "Groups, bytes per second",
        "Bps",
        12,
        "timeseries",
        [(f"sum by (group) (rate(farandole_bytes_total{{{JOB}}}[$__rate_interval]))", "{{group}}")],
    ),
    (
        "Errors per second",
        "short",
        12,
        "timeseries",
        [
            (
                f"sum by (collective, pod) (rate(farandole_errors_total{{{JOB}}}[$__rate_interval])) > 0",
                "{{pod}} {{collective}}",
            )
        ],
    ),
    ("Ranks: host, transports, version", "short", 24, "table", [(f"farandole_rank_info{{{JOB}}}", "")]),
]


def panels():
    x = y = 0
    for number, (title, unit, width, kind, queries) in enumerate(PANELS, 1):
        if x + width > 24:
            x, y = 0, y + 8
        targets = [
            {
                "refId": chr(65 + at),
                "expr": query,
                "legendFormat": legend,
                "datasource": {"uid": "${source}"},
                **({"format": "table", "instant": True} if kind == "table" else {}),
            }
            for at, (query, legend) in enumerate(queries)
        ]
        yield {
            "id": number,
            "title": title,
            "type": kind,
            "datasource": {"type": "prometheus", "uid": "${source}"},
            "gridPos": {"h": 8, "w": width, "x": x, "y": y},
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "targets": targets,
        }
        x += width


def variable(name, label, query):
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard():
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "farandole",
        "title": "farandole",
        "tags": ["farandole"],
        "schemaVersion": 39,
        "version": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                source,
                variable("namespace", "Namespace", "label_values(farandole_rank_info, namespace)"),
                variable(
                    "job",
                    "Job",
                    'label_values(farandole_rank_info{namespace=~"$namespace"}, app_kubernetes_io_instance)',
                ),
            ]
        },
        "panels": list(panels()),
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
