"""farandole where, SIGQUIT of farandole run, and the table at a stall."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from launch import FARANDOLE
from limits import allowed
from stopped import stop

DEADLINE_S = 60


def variables_of_test(more=None):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    return {**variables, "OMP_NUM_THREADS": "1", **(more or {})}


def where(*arguments, environment=None):
    return subprocess.run(
        [FARANDOLE, "where", *arguments],
        env=variables_of_test(environment),
        capture_output=True,
        text=True,
        timeout=allowed(DEADLINE_S),
    )


class Job:
    """A job under `farandole run`, whose ranks print "ready" before they wait."""

    def __init__(self, program, folder, ranks=2, environment=None, options=()):
        self.errors = open(folder / "errors", "w+")
        self.process = subprocess.Popen(
            [FARANDOLE, "run", "-np", str(ranks), *options, "--", sys.executable, "-c", program],
            env=variables_of_test(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.ranks = ranks
        self.pids = {}

    def __enter__(self):
        for _ in range(self.ranks):
            rank, pid = re.fullmatch(r"\[(\d+)\] ready (\d+)\n", self.process.stdout.readline()).groups()
            self.pids[int(rank)] = int(pid)
        return self

    def __exit__(self, *failure):
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.process.kill()
        self.process.wait(allowed(DEADLINE_S))
        self.errors.close()

    def states(self, condition):
        """The states of the ranks once they meet the condition: ranks reach their calls one after the other."""
        limit = time.monotonic() + allowed(DEADLINE_S)
        while True:
            done = where(str(self.process.pid), "--json")
            assert done.returncode in (0, 205), done.stderr
            states = {rank["rank"]: rank for rank in json.loads(done.stdout)["ranks"]}
            if condition(states):
                return done.returncode, states
            assert time.monotonic() < limit, states

    def wait_for_error(self, text, ended=False):
        limit = time.monotonic() + allowed(DEADLINE_S)
        while True:
            self.errors.flush()
            with open(self.errors.name) as file:
                written = file.read()
            if re.search(text, written):
                return written
            assert time.monotonic() < limit and (ended or self.process.poll() is None), written
            time.sleep(0.05)


START = """
import os, time
import numpy
import farandole
farandole.init()
comm = farandole.Communicator()
comm.barrier()
print("ready", os.getpid(), flush=True)
if farandole.rank() == 1:
    time.sleep(600)
"""
ORDERED = START + "comm.allreduce(numpy.ones(1000, numpy.float32))\n"
NAMED = START + "farandole.allreduce(numpy.ones(1000, numpy.float32), name='grad')\n"


def waits_for_rank_1(states):
    return all([wait["waits_for"] for wait in states[rank]["operations"]] == [[1]] for rank in states if rank != 1)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_where_names_the_rank_for_which_an_ordered_operation_waits(tmp_path, transport):
    with Job(ORDERED, tmp_path, 3, {"FARANDOLE_TRANSPORT": transport}) as job:
        code, states = job.states(waits_for_rank_1)
        assert code == 0
        assert states[1]["operations"] == [] and states[1]["presence"] == "answered"
        assert {rank: states[rank]["begun_ordered"] for rank in states} == {0: 2, 1: 1, 2: 2}
        assert {rank: states[rank]["process"] for rank in states} == job.pids
        wait = states[0]["operations"][0]
        assert wait["operation"] == "allreduce" and wait["group"] == "all comm 0" and wait["phase"]
        # Any rank's process names the job too.
        done = where(str(job.pids[1]))
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert re.fullmatch(rf"farandole run on .* \(process {job.process.pid}\): 3 ranks, 3 answered", lines[0])
        assert re.match(r"rank +host +process +begun +operation +waits for +for +phase", lines[1])
        assert re.match(rf"0 +\S+ +{job.pids[0]} +2 +allreduce +rank 1 +\d+\.\d s ", lines[2])
        assert re.match(rf"1 +\S+ +{job.pids[1]} +1 +- +no operation in flight", lines[3])


def test_where_lists_names_with_the_ranks_that_have_not_submitted_them(tmp_path):
    with Job(NAMED, tmp_path, 3) as job:
        code, states = job.states(waits_for_rank_1)
        assert code == 0
        (name,) = states[0]["names"]
        assert name["operation"] == "allreduce 'allreduce.grad'" and name["waits_for"] == [1] and name["waited_s"] >= 0
        assert [wait["operation"] for wait in states[2]["operations"]] == ["allreduce 'allreduce.grad'"]
        assert states[1]["operations"] == []
        # The age of an operation grows.
        age = states[2]["operations"][0]["waited_s"]
        assert 0 < age < job.states(waits_for_rank_1)[1][2]["operations"][0]["waited_s"] < DEADLINE_S
        done = where(str(job.process.pid))
        assert re.search(
            r"names that not all ranks have submitted:\n"
            r"  allreduce 'allreduce.grad' in group 'all' waits for rank 1, for \d+\.\d s\n"
            r"agreement on named operations:\n"
            r"  ranks 0 and 2: group 'all': 0 of 1 operations have ended, 0 agreed on; no order is locked",
            done.stdout,
        )


LOCKED = (
    START.split("print(")[0]
    + """
for step in range(60):
    farandole.allreduce(numpy.ones(1000, numpy.float32), name='grad')
print("ready", os.getpid(), flush=True)
if farandole.rank() == 1:
    time.sleep(600)
farandole.allreduce(numpy.ones(1000, numpy.float32), name='grad')
"""
)


def test_where_shows_the_locked_order_of_each_rank(tmp_path):
    with Job(LOCKED, tmp_path, 3, {"FARANDOLE_STALL_WARNING_S": "600"}) as job:
        code, states = job.states(
            lambda states: all("others are not" in states[rank]["agreements"][0]["state"] for rank in (0, 2))
        )
        assert code == 0
        for rank in states:
            (agreement,) = states[rank]["agreements"]
            ended = "60 of 60 operations have ended" if rank == 1 else "60 of 61 operations have ended, 0 agreed on"
            assert agreement["group"] == "all"
            state = rf"{ended}; locked order 1 of 1 bucket, in round \d+"
            assert re.fullmatch(state + ("" if rank == 1 else "; this rank is ready, others are not"),
                                agreement["state"])  # fmt: skip


STACKS = START.replace(
    "if farandole.rank() == 1:\n    time.sleep(600)\n",
    "def load_data():\n    time.sleep(600)\nif farandole.rank() == 1:\n    load_data()\n",
)


def test_where_shows_the_stacks_of_each_rank(tmp_path):
    with Job(STACKS + "comm.allreduce(numpy.ones(1000, numpy.float32))\n", tmp_path, 3) as job:
        job.states(waits_for_rank_1)
        done = where(str(job.process.pid), "--stacks")
        assert done.returncode == 0, done.stderr
        assert re.search(r"rank 1:\n  thread MainThread:\n(    .*\n)*    <string>:\d+ in load_data\n", done.stdout)
        # Ranks with the same stacks share them; the others wait in the library.
        assert re.search(r"ranks 0 and 2:\n  thread MainThread:\n(    .*\n)*    .* in allreduce.*\n", done.stdout)
        assert "load_data" not in where(str(job.process.pid)).stdout
        # Without --stacks no rank reads them.
        assert {rank["stacks"] for rank in json.loads(where(str(job.process.pid), "--json").stdout)["ranks"]} == {""}
        states = json.loads(where(str(job.process.pid), "--stacks", "--json").stdout)["ranks"]
        assert "in load_data" in states[1]["stacks"] and "in load_data" not in states[0]["stacks"]


# PyDLL keeps the lock of the interpreter while it calls.
HOLDS_THE_LOCK = START.replace("    time.sleep(600)\n", "    import ctypes\n    ctypes.PyDLL(None).sleep(600)\n")


def test_where_says_so_when_native_code_holds_the_interpreter(tmp_path):
    with Job(HOLDS_THE_LOCK + "comm.allreduce(numpy.ones(1000, numpy.float32))\n", tmp_path, 3) as job:
        job.states(waits_for_rank_1)
        done = where(str(job.process.pid), "--stacks")
        assert done.returncode == 0, done.stderr
        assert "rank 1:\n  the program has not given its stacks in time" in done.stdout
        assert "ranks 0 and 2:\n  thread MainThread:" in done.stdout


def test_a_stopped_rank_is_silent_and_the_others_are_shown(tmp_path):
    with Job(ORDERED, tmp_path, 3, {"FARANDOLE_LOST_AFTER_S": "600"}) as job:
        job.states(waits_for_rank_1)
        stop(job.pids[1])
        done = where(str(job.process.pid))
        assert done.returncode == 205, done.stderr
        lines = done.stdout.splitlines()
        assert "3 ranks, 2 answered, 1 silent" in lines[0]
        assert re.match(rf"1 +\S+ +{job.pids[1]} +- +silent: it has not answered within 2 s \(stopped\?\)", lines[3])
        assert "rank 1" in lines[2] and "rank 1" in lines[4]
        os.kill(job.pids[1], signal.SIGCONT)
        code, _ = job.states(waits_for_rank_1)
        assert code == 0


def test_a_rank_that_was_killed_is_lost(tmp_path):
    program = START.replace("if farandole.rank() == 1:", "if True:")
    with Job(program, tmp_path) as job:
        os.kill(job.pids.pop(1), signal.SIGKILL)
        code, states = job.states(lambda states: states[1]["presence"] == "lost")
        assert code == 205 and "was lost" in states[1]["why"] and states[0]["presence"] == "answered"


def test_a_coordinator_is_asked_at_its_address_with_the_key(tmp_path):
    with Job(ORDERED, tmp_path) as job:
        with open(f"/proc/{job.pids[1]}/environ") as file:
            variables = dict(line.split("=", 1) for line in file.read().split("\0") if "=" in line)
        address, key = variables["FARANDOLE_RENDEZVOUS"].split("?")[0], variables["FARANDOLE_JOB_KEY"]
        done = where("--rendezvous", address, "--json", environment={"FARANDOLE_JOB_KEY": key})
        assert done.returncode == 0, done.stderr
        assert [rank["presence"] for rank in json.loads(done.stdout)["ranks"]] == ["answered", "answered"]
        done = where("--rendezvous", address, environment={"FARANDOLE_JOB_KEY": "another key of a job"})
        assert done.returncode == 206 and "the job key differs from the coordinator's" in done.stderr
        done = where("--rendezvous", address)
        assert done.returncode == 78 and "FARANDOLE_JOB_KEY" in done.stderr


def test_where_refuses_what_is_no_job(tmp_path):
    with Job(ORDERED, tmp_path):
        done = where(str(os.getpid()))
        assert done.returncode == 206
        assert f"process {os.getpid()} serves no job of this user on this host and is no rank of one" in done.stderr
        for nonsense in ["nonsense", ""]:
            done = where("--rendezvous", nonsense, environment={"FARANDOLE_JOB_KEY": "0" * 32})
            assert done.returncode == 206, done.stderr
            assert f"farandole where: the rendezvous '{nonsense}' is not tcp://host:port" in done.stderr
        assert where("word").returncode == 64


def test_of_several_jobs_one_must_be_named(tmp_path):
    (tmp_path / "other").mkdir()
    with Job(ORDERED, tmp_path) as job, Job(ORDERED, tmp_path / "other") as other:
        done = where()
        assert done.returncode == 64 and "several jobs are served on this host: name one by its process" in done.stderr
        for process in (job.process, other.process):
            assert re.search(rf"\b{process.pid} \(\S*farandole run -np 2 ", done.stderr), done.stderr
        done = where(str(other.pids[1]), "--json")
        assert {rank["process"] for rank in json.loads(done.stdout)["ranks"]} == set(other.pids.values())


def test_where_finds_a_job_whose_rank_0_serves_the_coordinator(tmp_path):
    common = {"FARANDOLE_SIZE": "2", "FARANDOLE_RENDEZVOUS": f"file://{tmp_path}/rendezvous"}
    ranks = []
    try:
        for rank in range(2):
            variables = variables_of_test({**common, "FARANDOLE_RANK": str(rank)})
            command = [sys.executable, "-c", ORDERED]
            ranks.append(subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True))
        for rank in ranks:
            assert rank.stdout.readline() == f"ready {rank.pid}\n"
        done = where(str(ranks[1].pid), "--json")
        assert done.returncode == 0, done.stderr
        job = json.loads(done.stdout)
        assert job["process"] == ranks[0].pid and job["server"].startswith("rank 0 on ")
        assert [rank["process"] for rank in job["ranks"]] == [rank.pid for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(allowed(DEADLINE_S))
            rank.stdout.close()


# ---- farandole run prints it -----------------------------------------------------------------------------------------


# A script ignores SIGQUIT for its commands in the background.
@pytest.mark.parametrize("disposition", [signal.SIG_DFL, signal.SIG_IGN])
def test_sigquit_prints_the_table_and_the_job_goes_on(tmp_path, disposition):
    until_go = f"    while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)"
    program = START.replace("    time.sleep(600)", until_go) + "print(comm.allreduce(numpy.ones(1))[0])\n"
    before = signal.signal(signal.SIGQUIT, disposition)
    try:
        launched = Job(program, tmp_path)
    finally:
        signal.signal(signal.SIGQUIT, before)
    with launched as job:
        job.states(waits_for_rank_1)
        for _ in range(2):
            os.kill(job.process.pid, signal.SIGQUIT)
            job.wait_for_error(r"2 ranks, 2 answered\n +rank +host")
        (tmp_path / "go").touch()
        assert sorted(job.process.stdout.read().splitlines()) == ["[0] 2.0", "[1] 2.0"]
        assert job.process.wait(allowed(DEADLINE_S)) == 0


def test_a_stall_is_followed_by_the_table(tmp_path):
    with Job(ORDERED, tmp_path, 2, {"FARANDOLE_STALL_WARNING_S": "0.5"}) as job:
        job.wait_for_error(r"(?s)since \d+ s; see the log of that rank.*2 ranks, 2 answered\n.*"
                           r"0 +\S+ +\d+ +2 +allreduce +rank 1 ")  # fmt: skip


# ---- the history that survives ---------------------------------------------------------------------------------------


def inspect(*arguments):
    return subprocess.run(
        [FARANDOLE, "inspect", *map(str, arguments)],
        env=variables_of_test(),
        capture_output=True,
        text=True,
        timeout=allowed(DEADLINE_S),
    )


def test_the_histories_of_a_failed_job_name_the_rank_that_was_behind(tmp_path):
    folder = tmp_path / "histories"
    folder.mkdir()
    with Job(ORDERED, tmp_path, 3, {"FARANDOLE_HISTORY_DIR": str(folder)}) as job:
        job.states(waits_for_rank_1)
        os.kill(job.pids[1], signal.SIGKILL)
        assert job.process.wait(allowed(DEADLINE_S)) == 137
        written = job.wait_for_error(r"the ranks' last operations: farandole inspect \S+\*\.bin", ended=True)
    files = sorted(folder.iterdir())
    assert [re.sub(r"-[0-9a-f.]+-(\d)", r"-run-\1", file.name) for file in files] == [
        f"farandole-history-run-{rank}.bin" for rank in range(3)
    ]
    assert str(files[0]).rsplit("-", 1)[0] in written
    done = inspect(*files)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"job [0-9a-f]{16}: 3 of 3 ranks", lines[0])
    assert re.fullmatch(
        r"first behind: rank 1 in 'all comm 0': it has not called number 2, allreduce of 1000 float32 \(sum\), "
        r"which rank [02] called at [0-9:.]+ UTC",
        lines[1],
    )
    report = json.loads(inspect(*files, "--json").stdout)
    assert report["first_behind"] == [1] and report["first_behind_in"] == "all comm 0"
    # What is no history is an error that names the file and the reason.
    (tmp_path / "cut").write_bytes(files[0].read_bytes()[:5000])
    done = inspect(tmp_path / "cut")
    assert done.returncode == 78 and f"{tmp_path / 'cut'}: it is damaged" in done.stderr
    done = inspect(__file__)
    assert done.returncode == 78 and "it is no history of operations" in done.stderr
    done = inspect(files[0], files[0])
    assert done.returncode == 78 and "two files are of rank 0" in done.stderr


def test_the_histories_of_a_successful_job_are_removed(tmp_path):
    program = "import os, farandole, numpy\nfarandole.init()\nfarandole.allreduce(numpy.ones(1))\n"
    program += "print(len(os.listdir(os.environ['FARANDOLE_HISTORY_DIR'])))\nfarandole.barrier()\n"
    (tmp_path / "farandole-history-other-0.bin").touch()
    done = subprocess.run(
        [FARANDOLE, "run", "-np", "2", "--", sys.executable, "-c", program],
        env=variables_of_test({"FARANDOLE_HISTORY_DIR": str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=allowed(DEADLINE_S),
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 3", "[1] 3"]
    assert [file.name for file in tmp_path.iterdir()] == ["farandole-history-other-0.bin"]


def test_a_job_goes_on_without_the_folder_of_its_histories(tmp_path):
    done = subprocess.run(
        [FARANDOLE, "run", "-np", "2", "--", sys.executable, "-c", "import farandole\nfarandole.init()\n"],
        env=variables_of_test({"FARANDOLE_HISTORY_DIR": str(tmp_path / "missing")}),
        capture_output=True,
        text=True,
        timeout=allowed(DEADLINE_S),
    )
    assert done.returncode == 0, done.stderr
    text = r"making \S+/missing/farandole-history-\S+-[01]\.bin: No such file or directory.*\(FARANDOLE_HISTORY_DIR\)"
    assert len(re.findall(text, done.stderr)) == 2, done.stderr


def test_a_request_that_no_thread_waits_for_is_shown(tmp_path):
    with Job(START + "request = comm.iallreduce(numpy.ones(5))\ntime.sleep(600)\n", tmp_path) as job:
        code, states = job.states(lambda states: states[0]["operations"])
        assert code == 0
        (wait,) = states[0]["operations"]
        assert wait["operation"] == "allreduce" and wait["phase"] == "started as a request, no thread waits for it"
        assert wait["waited_s"] >= 0


def test_without_a_history_the_table_still_names_the_rank(tmp_path):
    with Job(ORDERED, tmp_path, 2, {"FARANDOLE_HISTORY": "0"}) as job:
        _, states = job.states(waits_for_rank_1)
        assert states[0]["begun_ordered"] == 2
