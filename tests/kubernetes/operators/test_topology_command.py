"""Tests of `farandole kubernetes topology`: with kubectl and a stub of the API server, and from a file."""

import io
import json
import sys

import pytest
from farandole.integrations.kubernetes.__main__ import main

ZONE, LAYER = "topology.kubernetes.io/zone", "topology.k8s.aws/network-node-layer-"
HEAD = f"# {ZONE} / {LAYER}1 / {LAYER}2 / {LAYER}3"


def node(name, **labels):
    return {"metadata": {"name": name, "labels": labels}}


def in_rack(name, zone, *layers, **more):
    return node(name, **{ZONE: zone}, **{f"{LAYER}{n}": layer for n, layer in enumerate(layers, 1)}, **more)


NODES = [
    in_rack("ip-3", "b", "nn-1", "nn-4", "nn-9"),
    in_rack("ip-2", "a", "nn-1", "nn-2", "nn-3"),
    node("ip-4", pool="system"),
    in_rack("ip-1", "a", "nn-1", "nn-2", "nn-3", pool="gpu"),
]
LINES = [HEAD, "ip-1 a/nn-1/nn-2/nn-3", "ip-2 a/nn-1/nn-2/nn-3", "ip-3 b/nn-1/nn-4/nn-9"]


@pytest.fixture
def cluster(api):
    for one in NODES:
        api.put("nodes", one)
    return api


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "nodes.json"
    path.write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [{"kind": "Node", **one} for one in NODES]})
    )
    return path


def test_the_nodes_of_a_cluster_are_lines_in_the_order_of_their_locations(cluster, capsys):
    assert main(["topology"]) == 0
    assert capsys.readouterr().out.splitlines() == [*LINES, "# ip-4 has none of these labels"]


def test_a_selector_and_labels_choose_nodes_and_levels(cluster, capsys):
    assert main(["topology", "--selector", "pool=gpu", "--labels", ZONE]) == 0
    assert capsys.readouterr().out.splitlines() == [f"# {ZONE}", "ip-1 a"]


def test_a_large_cluster_is_read_in_pages(cluster, capsys):
    cluster.page = 1
    assert main(["topology"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    asked = [query for path, query in cluster.requests if path == "/api/v1/nodes"]
    assert [query.get("continue") for query in asked] == [None, "1", "2", "3"]


def test_a_missing_right_is_the_servers_own_words(cluster, capsys):
    cluster.forbidden.add("nodes")
    assert main(["topology"]) == 69
    assert "nodes is forbidden" in capsys.readouterr().err


def test_a_file_of_kubectl_gives_the_same_lines_without_a_cluster(file, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert main(["topology", "--from", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[:4] == LINES
    monkeypatch.setattr(sys, "stdin", io.StringIO(file.read_text()))
    assert main(["topology", "--from", "-"]) == 0
    assert capsys.readouterr().out.splitlines()[:4] == LINES
    assert main(["topology"]) == 127
    assert "kubectl is not in PATH" in capsys.readouterr().err


@pytest.mark.parametrize("text", [json.dumps(NODES[0]), json.dumps({"kind": "Node", **NODES[0]})])
def test_one_node_is_a_file_too(tmp_path, text, capsys):
    (tmp_path / "one").write_text(text)
    assert main(["topology", "--from", str(tmp_path / "one")]) == 0
    assert capsys.readouterr().out.splitlines() == [HEAD, "ip-3 b/nn-1/nn-4/nn-9"]


@pytest.mark.parametrize(
    "items, why",
    [([], "there is no node"), ([node("a"), {"metadata": {"name": "b"}}], "no node has any of the labels")],
)
def test_a_file_without_a_location_is_written_with_a_warning(tmp_path, items, why, capsys):
    (tmp_path / "none").write_text(json.dumps({"items": items}))
    assert main(["topology", "--from", str(tmp_path / "none")]) == 0
    printed = capsys.readouterr()
    assert all(line.startswith("#") for line in printed.out.splitlines()) and why in printed.err


@pytest.mark.parametrize(
    "text, code, why",
    [
        ("garbage", 65, "Expecting value"),
        ("[" * 100000, 65, "recursion"),
        ("\udcff", 65, "utf-8"),
        ("[]", 65, "it has no list of nodes"),
        ('{"items": 7}', 65, "it has no list of nodes"),
        ('{"items": [7]}', 65, "it has objects that are no nodes"),
        ('{"items": [{"kind": "Pod", "metadata": {"name": "p"}}]}', 65, "it has objects that are no nodes"),
        ('{"items": [{"metadata": {}}]}', 65, "it is no node: metadata.name is missing"),
        (json.dumps({"items": [node("a", **{ZONE: "b\nc d"})]}), 65, "which no label has"),
        (None, 66, "No such file or directory"),
    ],
)
def test_a_file_that_has_no_nodes_is_an_error(tmp_path, text, code, why, capsys):
    path = tmp_path / "file"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    assert main(["topology", "--from", str(path)]) == code
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith(f"farandole kubernetes topology: --from {path}: ")
    assert why in printed.err


@pytest.mark.parametrize(
    "words, why",
    [
        ("--labels a,,b", "--labels: '' is no label of nodes"),
        ("--labels a/", "--labels: 'a/' is no label of nodes"),
        ("--from f --selector a=b", "--selector with --from: the nodes are those of the file"),
        ("--from f --context c", "--context with --from"),
        ("extra", "unrecognized arguments: extra"),
    ],
)
def test_a_wrong_line_names_its_fault(words, why, capsys):
    assert main(["topology", *words.split()]) == 64
    assert why in capsys.readouterr().err
