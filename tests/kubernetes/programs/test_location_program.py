"""Tests of the init container that writes the location of its node, against an API server over HTTPS."""

import os
import shutil
import subprocess
import sys
import time

import pytest
from farandole.integrations.kubernetes.location import program as location
from nodes_server import TOKEN, NodesServer, make_account

LEVEL = "topology.k8s.aws/network-node-layer-"
LABELS = {"topology.kubernetes.io/zone": "us-east-1a", **{f"{LEVEL}{n}": f"nn-{n}" for n in (1, 2, 3)}}
REMEDY = "bind the pod's service account to a ClusterRole that may get nodes"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    return make_account(tmp_path_factory.mktemp("certified"))


@pytest.fixture
def account(certified, tmp_path):
    shutil.copytree(certified, tmp_path / "account")
    return tmp_path / "account"


@pytest.fixture
def api(account, monkeypatch):
    monkeypatch.setattr(location, "_PAUSE_S", 0.02)
    server = NodesServer(account, {"node-0": LABELS, "node-1": {}}).start()
    yield server
    server.end()


@pytest.fixture
def program(api, account, tmp_path, capsys):
    """program(...): what the program writes and prints, and its code."""
    environment = {
        "FARANDOLE_NODE_NAME": "node-0",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(api.port),
    }

    def run(*words, output=tmp_path / "topology", deadline=5, **changed):
        own = {name: value for name, value in {**environment, **changed}.items() if value is not None}
        code = location.main(["--output", str(output), "--deadline", str(deadline), *words], own, str(account))
        printed = capsys.readouterr()
        return (output.read_text() if output.exists() else None), printed.err, code

    return run


def assert_no_location(result, why):
    """The job runs all the same: the file is one comment, the code 0, and the warning names the reason."""
    text, said, code = result
    assert code == 0 and text.startswith("# no location: ") and text.count("\n") == 1
    assert why in text and why in said, said
    assert said.startswith("farandole location: warning: ") and said.count("\n") == 1
    assert said.endswith("The job runs without this node's location.\n")
    assert TOKEN not in text + said


def test_the_labels_of_the_node_are_its_location_the_widest_first(program, api):
    assert program() == ("* us-east-1a/nn-1/nn-2/nn-3\n", "", 0)
    ((path, authorization, accepted),) = api.requests
    assert (path, authorization) == ("/api/v1/nodes/node-0", f"Bearer {TOKEN}")
    assert accepted.startswith("application/json;as=PartialObjectMetadata;")  # without status, images and addresses


@pytest.mark.parametrize(
    "labels, wanted",
    [
        ("rack,room", "* r1\n"),
        ("room,rack", "* -/r1\n"),
        ("rack,room,topology.kubernetes.io/zone", "* r1/-/us-east-1a\n"),
        ("topology.kubernetes.io/zone", "* us-east-1a\n"),
    ],
)
def test_a_label_that_a_node_lacks_keeps_the_place_of_its_level(program, api, labels, wanted):
    api.nodes["node-0"] = {**LABELS, "rack": "r1", "room": ""}
    assert program("--labels", labels) == (wanted, "", 0)


def test_a_node_without_the_labels_has_no_location(program):
    text, said, code = program(FARANDOLE_NODE_NAME="node-1")
    assert (text, code) == ("# this node has no location\n", 0)
    assert "warning: the node has none of the labels topology.kubernetes.io/zone," in said


def test_a_location_that_is_given_needs_no_server(program, api):
    assert program("--location", "us-east-1b") == ("* us-east-1b\n", "", 0)
    assert program("--location", "") == ("# this node has no location\n", "", 0)
    assert api.requests == []


def test_a_missing_right_names_the_remedy(program, api):
    api.answers = [lambda h: h.fail(403, 'nodes "node-0" is forbidden: User "system:serviceaccount:ml:train"')] * 9
    result = program()
    assert_no_location(result, "answers 403 for node node-0: nodes")
    assert REMEDY in result[1] and len(api.requests) == 3


def test_a_role_that_comes_into_force_late_is_waited_for(program, api):
    api.answers = [lambda h: h.fail(403, "forbidden")] * 2
    assert program()[0] == "* us-east-1a/nn-1/nn-2/nn-3\n"


def test_a_server_that_starts_is_waited_for(program, api):
    api.answers = [lambda h, code=code: h.fail(code, "later") for code in (503, 429, 500, 502, 504)]
    assert program()[0] == "* us-east-1a/nn-1/nn-2/nn-3\n"


def test_a_node_that_does_not_exist_is_named(program, api):
    assert_no_location(program(FARANDOLE_NODE_NAME="node-9"), 'answers 404 for node node-9: nodes "node-9" not found')


def test_the_name_of_a_node_is_no_path(program, api):
    program(FARANDOLE_NODE_NAME="../secrets/a?b")
    assert api.requests[0][0] == "/api/v1/nodes/..%2Fsecrets%2Fa%3Fb"


def _hang(handler):
    handler.api.released.wait(30)


def _drip_headers(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while not handler.api.released.wait(0.05):
        handler.wfile.write(b"X-Slow: a\r\n")


def _drip_body(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not handler.api.released.wait(0.05):
        handler.wfile.write(b" ")


@pytest.mark.parametrize("answer", [_hang, _drip_headers, _drip_body])
def test_an_answer_that_does_not_end_is_given_up_at_the_deadline(program, api, answer):
    api.answers = [answer] * 9
    begin = time.monotonic()
    assert_no_location(program(deadline=0.5), "has not answered within 0.5 s")
    assert time.monotonic() - begin < 5


def _endless(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not handler.api.released.is_set():
        handler.wfile.write(b"[" * 65536)


@pytest.mark.parametrize("answer", [_endless, lambda h: h.send(b" " * (5 << 20))])
def test_a_huge_answer_is_not_read_to_its_end(program, api, answer):
    api.answers = [answer] * 9
    assert_no_location(program(deadline=20), "answer has more than 4 MiB")


@pytest.mark.parametrize(
    "body, why",
    [
        (b"\xff\x00nonsense", "is no object of JSON"),
        (b"", "is no object of JSON"),
        (b"[]", "is no object of JSON"),
        (b"[" * 100000, "is no object of JSON"),
        (b"{}", "it is no node: metadata.name is missing"),
        (b'{"metadata": {"name": 7}}', "it is no node"),
        (b'{"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": ["a"]}}}', "which no label has"),
        (b'{"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "a/b"}}}', "which no label has"),
        (b'{"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "a\\n* b"}}}', "which no label has"),
    ],
)
def test_an_answer_that_is_no_node_is_refused(program, api, body, why):
    api.answers = [lambda h: h.send(body)] * 9
    assert_no_location(program(), why)


def test_labels_that_are_no_mapping_are_none(program, api):
    api.answers = [lambda h: h.send({"metadata": {"name": "n", "labels": [1]}})]
    assert program()[0] == "# this node has no location\n"


def test_a_message_of_the_server_cannot_add_a_line_to_the_file(program, api):
    api.answers = [lambda h: h.fail(404, "lost\n* evil\x1b[2J")] * 9
    assert_no_location(program(), "lost * evil [2J")


def test_a_broken_answer_is_requested_again(program, api):
    def cut(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

    def noise(handler):
        handler.wfile.write(b"SSH-2.0-OpenSSH\r\n")

    api.answers = [cut, noise]
    assert program()[0] == "* us-east-1a/nn-1/nn-2/nn-3\n"


def test_a_redirection_is_not_followed(program, api):
    api.answers = [lambda h: h.send({}, 302, Location="https://127.0.0.1:1/api/v1/nodes/node-0")] * 9
    assert_no_location(program(), "answers 302 for node node-0")
    assert {path for path, *_ in api.requests} == {"/api/v1/nodes/node-0"}


def test_a_proxy_of_the_image_is_not_used(program, monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert program()[0] == "* us-east-1a/nn-1/nn-2/nn-3\n"


def test_a_server_with_another_certificate_gets_no_token(program, api, account, tmp_path):
    other = make_account(tmp_path / "other")
    shutil.copy(other / "ca.crt", account / "ca.crt")
    assert_no_location(program(), "is not trusted: ")
    assert api.requests == []


@pytest.mark.parametrize(
    "name, text, why",
    [
        ("token", None, "/token: No such file or directory"),
        ("token", "", "/token is empty, or no token"),
        ("token", "a b\nX-Other: c", "/token is empty, or no token"),
        ("token", "expired", "answers 401 for node node-0: Unauthorized"),
        ("ca.crt", None, "/ca.crt: No such file or directory"),
        ("ca.crt", "garbage", "/ca.crt: "),
    ],
)
def test_without_its_account_the_pod_has_no_location(program, api, account, name, text, why):
    if text is None:
        (account / name).unlink()
    else:
        (account / name).write_text(text)
    assert_no_location(program(), why)


def test_without_a_server_the_last_reason_is_given(program):
    assert_no_location(program(KUBERNETES_SERVICE_PORT="1", deadline=0.3), "Connection refused")
    assert_no_location(program(KUBERNETES_SERVICE_PORT="tcp://10.0.0.1"), "invalid literal")
    assert_no_location(program(KUBERNETES_SERVICE_HOST=None), "this is no pod of Kubernetes")
    assert_no_location(program(FARANDOLE_NODE_NAME=None), "FARANDOLE_NODE_NAME is not set")


def test_a_file_that_cannot_be_written_fails_the_pod_with_the_reason(program, tmp_path):
    text, said, code = program(output=tmp_path / "none" / "topology")
    assert (text, code) == (None, 74)
    assert said == f"farandole location: {tmp_path}/none/topology cannot be written: No such file or directory\n"


def test_a_container_that_starts_again_replaces_its_file(program, tmp_path):
    (tmp_path / "topology").write_text("* before\n" * 9)
    assert program()[0] == "* us-east-1a/nn-1/nn-2/nn-3\n"
    assert {path.name for path in tmp_path.iterdir()} == {"account", "topology"}


def test_the_module_runs_in_an_image_without_numpy(tmp_path):
    module = "farandole.integrations.kubernetes.location"
    code = f"import runpy, sys; sys.modules['numpy'] = None; runpy.run_module('{module}', run_name='__main__')"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBERNETES_")}
    for words, said in ((["-m", module], "FARANDOLE_NODE_NAME is not set"), (["-c", code], "")):
        output = tmp_path / words[0]
        more = [] if said else ["--location", "a"]
        done = subprocess.run(
            [sys.executable, *words, "--output", output, *more], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0 and said in done.stderr, done.stderr
        assert output.read_text().startswith("# no location: " if said else "* a\n")
