"""Tests of checkpoints in folders and object stores: after a failure at any point the old or the new one is whole."""

import os
import re
import subprocess
import sys

import pytest
from farandole import checkpoint, launcher, stores

pytest.importorskip("s3fs", reason="needs s3fs and moto: bash tests/kubernetes/setup.sh")
import s3_server

READ_AND_WRITE = ["s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FARANDOLE_"))}


@pytest.fixture(scope="session")
def s3():
    server = s3_server.S3Server()
    server.make_bucket("training")
    yield server
    server.end()


@pytest.fixture
def let_in(s3, monkeypatch):
    for name, value in s3.variables.items():
        monkeypatch.setenv(name, value)
    _forget_credentials()
    yield s3
    s3.demand_credentials(False)
    _forget_credentials()


def _forget_credentials():
    """Drops fsspec's connections: it keeps one for each bucket with the credentials of the first use."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="session")
def gcs():
    """An emulator of Google's storage."""
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="training")
    server.start()
    yield f"http://127.0.0.1:{server._api._httpd.server_address[1]}"
    server.stop()


@pytest.fixture(params=["folder", "file", "s3", "gs", "memory"])
def place(request, tmp_path, monkeypatch):
    name = request.node.name
    if request.param == "s3":
        request.getfixturevalue("let_in")
    elif request.param == "gs":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("gcs"))
        name = name.replace("[", "-").replace("]", "")  # the emulator uses the names for files
    return {"folder": str(tmp_path), "file": f"file://{tmp_path}"}.get(
        request.param, f"{request.param}://training/{name}"
    )


# ---- Old or new, and whole -------------------------------------------------------------------------------------------


def test_k6_p7_the_last_checkpoint_is_read_and_only_two_are_kept(place):
    assert checkpoint.load(place) is None and checkpoint.read(f"{place}/state.npz") is None
    for step in (1, 2, 3):
        checkpoint.save(place, step, {"model": b"m%d" % step, "optimizer": lambda file: file.write(b"o" * 10)})
    found = checkpoint.load(place)
    assert (found.step, found.parts, found.open("model").read()) == (3, {"model": b"m3", "optimizer": b"o" * 10}, b"m3")
    assert checkpoint.load(place, names=["model"]).parts == {"model": b"m3"}
    assert sorted(name[:12] for name in stores.at(place).entries()) == ["000000000002", "000000000003"]
    checkpoint.write(f"{place}/state.npz", b"one")
    checkpoint.write(f"{place}/state.npz", memoryview(b"two"))
    assert checkpoint.read(f"{place}/state.npz") == b"two" and checkpoint.load(place).step == 3


class Died(BaseException):
    """Stands for SIGKILL: no handler catches it."""


@pytest.mark.parametrize("at", range(4))
def test_k6_after_an_interrupted_save_the_old_checkpoint_is_read(place, at, monkeypatch):
    """A save makes four requests to the store: it writes two parts and the manifest, and lists old checkpoints."""
    checkpoint.save(place, 1, {"model": b"old", "optimizer": b"old"})
    store = type(stores.at(place))
    left = [at]

    def cut(method):
        def until(*arguments):
            if left[0] == 0:
                raise Died
            left[0] -= 1
            return method(*arguments)

        return until

    with monkeypatch.context() as patch:
        for name in ("stream", "write", "entries"):
            patch.setattr(store, name, cut(getattr(store, name)))
        with pytest.raises(Died):
            checkpoint.save(place, 2, {"model": b"new", "optimizer": b"new"})
    found = checkpoint.load(place)
    assert set(found.parts.values()) == {b"old" if at < 3 else b"new"} and found.step == (1 if at < 3 else 2)
    for step in (3, 4):
        checkpoint.save(place, step, {"model": b"next"})
    assert sorted(name[:12] for name in stores.at(place).entries()) == [
        "000000000003",
        "000000000004",
    ]  # nor the torn one


@pytest.mark.parametrize("scheme", ["", "s3"])
def test_k6_h9_a_process_that_is_killed_while_it_writes_leaves_the_old_one(scheme, tmp_path, let_in):
    place = "s3://training/killed" if scheme else str(tmp_path)
    checkpoint.save(place, 1, {"model": b"old"})
    program = (
        "import os, signal, sys\nfrom farandole import checkpoint\n"
        "def half(file):\n    file.write(b'n' * (1 << 20))\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoint.save(sys.argv[1], 2, {'first': b'new', 'second': half})\n"
    )
    done = subprocess.run([sys.executable, "-c", program, place], env={**CLEAN, **let_in.variables})
    assert done.returncode == -9
    found = checkpoint.load(place)
    assert (found.step, found.parts) == (1, {"model": b"old"}) and len(stores.at(place).entries()) == 2


def test_k6_a_torn_manifest_is_skipped(place):
    checkpoint.save(place, 1, {"model": b"old"})
    checkpoint.save(place, 2, {"model": b"new"})
    store = stores.at(place)
    newest = max(store.entries())
    whole = store.read(f"{newest}/manifest.json")
    store.write(f"{newest}/manifest.json", whole[: len(whole) // 2])
    assert checkpoint.load(place).step == 1


def test_k6_a_damaged_part_is_an_error_and_not_a_fresh_start(place):
    checkpoint.save(place, 7, {"model": b"right", "optimizer": b"right"})
    store = stores.at(place)
    (folder,) = store.entries()
    store.write(f"{folder}/optimizer", b"wrong")
    with pytest.raises(
        checkpoint.CheckpointError, match="it differs from what was saved; remove this folder"
    ) as caught:
        checkpoint.load(place)
    assert f"rank 0 ({os.uname().nodename}) could not read {place}/{folder}/optimizer" in str(caught.value)
    assert checkpoint.load(place, names=["model"]).parts == {"model": b"right"}
    with pytest.raises(checkpoint.CheckpointError, match="no such part, only model, optimizer"):
        checkpoint.load(place, names=["other"])
    store.remove(f"{folder}/optimizer")
    with pytest.raises(checkpoint.CheckpointError, match="it differs from what was saved"):
        checkpoint.load(place)


# ---- A service account's role ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def roles(s3):
    here = {
        "Effect": "Allow",
        "Action": READ_AND_WRITE,
        "Resource": ["arn:aws:s3:::training", "arn:aws:s3:::training/*"],
    }
    s3.make_role("trainer", here)
    s3.make_role("reader", {**here, "Action": ["s3:ListBucket", "s3:GetObject"]})
    s3.make_bucket("others")
    return s3


def be(role, s3, monkeypatch, tmp_path):
    """Sets the variables that EKS gives to a pod whose service account has a role, and removes all keys."""
    token = tmp_path / "token"
    token.write_text(s3_server.TokenOffice.TOKEN)
    for name in s3_server.OPEN:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ROLE_ARN", s3_server.ROLES + role)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    s3.demand_credentials()
    _forget_credentials()


def test_p7_k6_c10_a_service_accounts_role_is_enough_and_is_needed(let_in, roles, monkeypatch, tmp_path):
    be("trainer", let_in, monkeypatch, tmp_path)
    checkpoint.save("s3://training/role", 1, {"model": b"by its role"})
    assert checkpoint.load("s3://training/role").parts == {"model": b"by its role"}
    with pytest.raises(
        checkpoint.CheckpointError, match="role of the pod's service account may not do this there"
    ) as caught:
        checkpoint.save("s3://others/role", 1, {"model": b""})
    assert "s3://others/role/000000000001-" in str(caught.value)
    monkeypatch.delenv("AWS_ROLE_ARN")
    monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE")
    _forget_credentials()
    with pytest.raises(
        checkpoint.CheckpointError, match="no credentials were found: give the pod's service account a role"
    ):
        checkpoint.load("s3://training/role")


def test_p7_a_token_that_is_not_mounted_is_an_error_and_not_a_fresh_start(let_in, roles, monkeypatch, tmp_path):
    be("trainer", let_in, monkeypatch, tmp_path)
    (tmp_path / "token").unlink()
    _forget_credentials()
    for ask in (checkpoint.load, checkpoint.read):
        with pytest.raises(
            checkpoint.CheckpointError, match="check that the token of the pod's service account is mounted"
        ):
            ask("s3://training/no-token")


def test_p7_a_role_that_may_only_read_gets_an_error_when_it_writes(let_in, roles, monkeypatch, tmp_path):
    checkpoint.save("s3://training/read", 5, {"model": b"open"})
    be("reader", let_in, monkeypatch, tmp_path)
    assert checkpoint.load("s3://training/read").step == 5
    with pytest.raises(checkpoint.CheckpointError, match="allow it to list, get, put and delete objects"):
        checkpoint.write("s3://training/read/state.npz", b"")


# ---- The store fails -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_k6_a_bucket_that_does_not_exist_is_an_error_before_training(scheme, request, monkeypatch):
    if scheme == "s3":
        request.getfixturevalue("let_in")
    else:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("gcs"))
    for ask in (checkpoint.load, checkpoint.read):
        with pytest.raises(
            checkpoint.CheckpointError, match="does not exist; create the bucket, or correct its name"
        ) as caught:
            ask(f"{scheme}://trianing/run-7")
        assert f"rank 0 ({os.uname().nodename}) could not " in str(caught.value) and f"{scheme}://trianing" in str(
            caught.value
        )


def test_k6_the_existence_of_a_gcs_bucket_is_checked_by_one_small_request(gcs, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs)
    place = "gs://training/asked-once"
    asked = []
    files = stores.at(place).files  # one object serves all places of this kind
    monkeypatch.setattr(files, "ls", lambda path, _ls=files.ls, **more: asked.append((path, more)) or _ls(path, **more))
    assert checkpoint.load(place) is None
    assert asked == [("training/asked-once", {"detail": False}), ("training", {"detail": False, "max_results": 1})]
    checkpoint.save(place, 1, {"model": b"new"})
    asked.clear()
    assert checkpoint.load(place).step == 1 and [path for path, _ in asked] == ["training/asked-once"]


def test_k6_a_store_that_does_not_answer_is_named_with_the_possible_causes(let_in, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    _forget_credentials()
    with pytest.raises(checkpoint.CheckpointError, match="could not save to s3://training/none/0.*pods can reach it"):
        checkpoint.save("s3://training/none", 1, {"model": b""})


def test_k6_a_missing_library_and_an_unknown_scheme_are_errors(monkeypatch):
    with pytest.raises(checkpoint.CheckpointError, match="fsspec does not support nowhere://; give a path"):
        checkpoint.load("nowhere://bucket/run")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(
        checkpoint.CheckpointError, match=r'could not look into s3://bucket/run: .*pip install "farandole\[s3\]"'
    ):
        checkpoint.load("s3://bucket/run")
    with pytest.raises(checkpoint.CheckpointError, match=r'pip install "farandole\[gcs\]"'):
        checkpoint.read("gs://bucket/run")


def test_h9_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(checkpoint.CheckpointError, match="could not save to .*/file/sub/000000000001-"):
        checkpoint.save(tmp_path / "file" / "sub", 1, {"model": b""})
    with pytest.raises(
        checkpoint.CheckpointError, match="No space left on device; free some space, or keep fewer checkpoints"
    ):
        checkpoint.save(tmp_path, 1, {"model": _full})
    with pytest.raises(checkpoint.CheckpointError, match="must not be named 'a/b'"):
        checkpoint.save(tmp_path, 1, {"a/b": b""})


def _full(file):
    with open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")


# ---- Several ranks ---------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
import farandole
from farandole import checkpoint

farandole.init()
rank = farandole.rank()
if str(rank) == os.environ.get("BLIND"):
    os.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"

def print_result(work):
    try:
        print(f"{rank}: {work()}", flush=True)
    except checkpoint.CheckpointError as error:
        print(f"{rank}: {error.culprit_rank}: {error}", flush=True)

def load():
    found = checkpoint.load(sys.argv[1])
    return found and (found.step, found.parts)

print_result(load)
print_result(lambda: checkpoint.save(sys.argv[1], 3, {"model": b"of rank %d" % rank}))
print_result(load)
farandole.shutdown()
if "LATE" in os.environ:  # as callbacks of on_leave do
    checkpoint.save(sys.argv[1], 4, {"model": b"late, of rank %d" % rank}, together=False)
"""


def lines_of(place, s3, ranks=3, **more):
    done = subprocess.run(
        [launcher.program(), "run", "-np", str(ranks), "--", sys.executable, "-c", PROGRAM, place],
        env={**CLEAN, **s3.variables, **more}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(line.split("] ", 1)[1] for line in done.stdout.splitlines())  # without the launcher's "[rank] "


def test_p7_k6_rank_0_writes_and_all_ranks_read(let_in):
    assert lines_of("s3://training/ranks", let_in, LATE="1") == sorted(
        f"{rank}: {printed}" for rank in range(3) for printed in ("None", "None", "(3, {'model': b'of rank 0'})")
    )
    # A rank keeps its number after its world has ended.
    assert sorted(name[:12] for name in stores.at("s3://training/ranks").entries()) == ["000000000003", "000000000004"]
    assert checkpoint.load("s3://training/ranks").parts == {"model": b"late, of rank 0"}


@pytest.mark.parametrize("blind", [0, 2])
def test_k6_the_failure_of_one_rank_is_raised_on_all_and_names_it(let_in, blind):
    checkpoint.save(f"s3://training/blind-{blind}", 1, {"model": b"old"})
    lines = lines_of(f"s3://training/blind-{blind}", let_in, BLIND=str(blind))
    reported = [line.split(": ", 1)[1] for line in lines if f": {blind}: checkpoint: rank {blind} (" in line]
    # Rank 0 fails to list, to save and to list again. Another rank fails to read twice; rank 0 saves without it.
    what = ["look into", "look into", "save to"] if blind == 0 else ["read", "read"]
    assert sorted(re.search(r"could not (look into|save to|read)", one)[1] for one in reported) == sorted(what * 3), (
        lines
    )
    assert all(reported.count(one) % 3 == 0 and "pods can reach it" in one for one in reported), (
        lines
    )  # the same text on all ranks
