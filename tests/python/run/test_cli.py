"""The farandole command: run, bench, env, config, explain."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

import fake_devices
import pytest
from launch import FARANDOLE, free_port
from limits import allowed


def farandole(*arguments, environment=None, timeout=60):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    variables.update(OMP_NUM_THREADS="1")  # else `run` chooses a value and writes a note
    variables.update(environment or {})
    return subprocess.run([FARANDOLE, *arguments], env=variables, capture_output=True, text=True, timeout=timeout)


def python(code):
    return [sys.executable, "-c", code]


# ---- run -------------------------------------------------------------------------------------------------------------


def test_run_prefixes_the_output_of_each_rank():
    done = farandole("run", "-np", "3", "--", "sh", "-c", "echo I am $FARANDOLE_RANK of $FARANDOLE_SIZE; echo oops >&2")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] I am {r} of 3" for r in range(3)]
    assert sorted(done.stderr.splitlines()) == [f"[{r}] oops" for r in range(3)]


@pytest.mark.parametrize(
    "program, code, text",
    [
        (["no-such-program"], 127, "the program 'no-such-program' is not in PATH"),
        (["/no/such/program"], 127, "cannot run '/no/such/program': No such file or directory"),
        (["/etc/passwd"], 126, "cannot run '/etc/passwd': Permission denied"),
    ],
)
def test_run_of_a_program_that_cannot_start_ends_as_in_a_shell(program, code, text):
    done = farandole("run", "-np", "2", "--", *program)
    assert done.returncode == code and text in done.stderr, done.stderr


@pytest.mark.parametrize(
    "words, text",
    [
        (["bench", "--size", "0"], "farandole bench: '--size' is not an option; do you mean --sizes?"),
        (["run", "--npp", "2", "--", "true"], "farandole run: '--npp' is not an option; do you mean --np?"),
        (["bench", "--qqqqqq"], "farandole bench: '--qqqqqq' is not an option; `farandole bench --help` lists"),
        (["bench", "word"], "farandole bench: 'word' is not an option"),
        (
            ["run", "--replacements", "-1", "--", "true"],
            "'-1' is not a whole number from 0 to 2147483647",
        ),
        (["run", "--max-restarts", "1e309", "--", "true"], "'1e309' is not a whole number from 0 to 2147483647"),
        (["run", "-np", "0", "--", "true"], "-np (--nproc-per-node) '0' is neither a number above 0 nor auto"),
    ],
)
def test_a_word_that_is_not_understood_is_named_as_it_was_typed(words, text):
    done = farandole(*words)
    assert done.returncode == 64 and text in done.stderr, done.stderr


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e400"])
@pytest.mark.parametrize(
    "words, option",
    [
        (["explain"], "--latency-us"),
        (["explain"], "--gigabytes-per-s"),
        (["tune", "--quick"], "--seconds"),
        (["run", "-np", "1", "--max-np", "2"], "--elastic-timeout"),
    ],
)
def test_a_number_that_is_not_finite_or_is_negative_is_refused(words, option, value):
    done = farandole(*words, f"{option}={value}", *(["--", "true"] if words[0] == "run" else []))
    assert done.returncode == 64 and f"{option}: '{value}' is not a finite number above 0" in done.stderr, done.stderr


def test_a_misspelt_variable_is_reported_with_the_nearest_one():
    done = farandole("config", environment={"FARANDOLE_TRANSPROT": "shm", "FARANDOLE_OF_MY_PROGRAM": "1"})
    assert "FARANDOLE_TRANSPROT is not a variable of this version; do you mean FARANDOLE_TRANSPORT?" in done.stdout
    assert "OF_MY_PROGRAM" not in done.stdout


def test_a_rank_that_ends_early_is_named_and_not_the_one_that_fails_of_it():
    code = ("import farandole, numpy, sys\nfarandole.init()\nfarandole.barrier()\n"
            "sys.exit(0) if farandole.rank() == 1 else farandole.allreduce(numpy.ones(1), name='a')")  # fmt: skip
    done = farandole("run", "-np", "2", "--", *python(code))
    assert done.returncode == 1
    text = r"rank 1 ended before the others were done; rank 0 \(process \d+\) failed because of it: exit code 1"
    assert re.search(text, done.stderr), done.stderr
    assert "failed first" not in done.stderr
    assert "rank 1" in done.stderr and "give all ranks the same number of steps, or call join()" in done.stderr


def test_ranks_that_fail_alike_are_not_called_collateral():
    done = farandole("run", "-np", "3", "--", *python("raise ValueError('no data')"))
    assert done.returncode == 1 and done.stderr.count("failed first") == 1, done.stderr
    assert done.stderr.count("last lines of rank") == 1
    assert done.stderr.count("ended with exit code 1 and the same last line") == 2
    assert "collateral" not in done.stderr


def test_ranks_that_run_another_python_are_reported(tmp_path):
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho ran\n")
    other.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "farandole", "run", "-np", "1"]
    note = f"farandole run: ranks run {other}, but this command belongs to {sys.executable}"
    for words, reported in (["--", "python3", "x.py"], True), (["--quiet", "--", "python3", "x.py"], False), (
        ["--", sys.executable, "-c", "print('ran')"], False):  # fmt: skip
        done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, timeout=allowed(60))
        assert done.returncode == 0 and "ran" in done.stdout, done.stderr
        assert (note in done.stderr) == reported, done.stderr


def test_run_divides_the_cores_among_its_ranks():
    print_it = ["--", "sh", "-c", "echo $OMP_NUM_THREADS"]
    unset = {"OMP_NUM_THREADS": ""}
    done = farandole("run", "-np", "2", *print_it, environment=unset)
    line = (
        r"farandole run: OMP_NUM_THREADS=(\d+) for each of 2 ranks on (\d+) usable cores; set it to choose another .*\n"
    )
    share, cores = re.fullmatch(line, done.stderr).groups()
    assert 1 <= int(cores) <= len(os.sched_getaffinity(0)) and int(share) == max(1, int(cores) // 2)
    assert sorted(done.stdout.splitlines()) == [f"[0] {share}", f"[1] {share}"], done.stderr
    done = farandole("run", "-np", "2", "--quiet", *print_it, environment=unset)
    assert (sorted(done.stdout.splitlines()), done.stderr) == ([f"[0] {share}", f"[1] {share}"], "")
    for given, environment in (["-x", "OMP_NUM_THREADS=7"], unset), ([], {"OMP_NUM_THREADS": "7"}):
        done = farandole("run", "-np", "2", *given, *print_it, environment=environment)
        assert (sorted(done.stdout.splitlines()), done.stderr) == (["[0] 7", "[1] 7"], "")
    done = farandole("run", "-np", "1", *print_it, environment=unset)
    assert (done.stdout, done.stderr) == ("[0] \n", ""), "a single rank keeps all cores"


def test_ranks_have_the_hard_limit_of_descriptors():
    soft, hard = 256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    command = f"ulimit -Sn {soft}; exec '{FARANDOLE}' run --quiet -np 1 -- sh -c 'ulimit -Sn'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=allowed(60))
    assert done.stdout.split() == ["[0]", str(hard)], done.stderr


@pytest.mark.parametrize("dashes", [["--"], []])
def test_run_passes_the_command_unchanged(dashes):
    words = ["a", "--json", "b", "-np", "7", "--", "-x", "--help"]
    done = farandole("run", "-np", "1", "--no-prefix", *dashes, *python("import sys; print(sys.argv[1:])"), *words)
    assert done.stdout == f"{words}\n", done.stderr


# Rank 1 arrives later than after 2 s.
def test_the_limit_of_the_start_is_a_duration_with_a_unit():
    code = "import os, time\ntime.sleep(4 * int(os.environ['FARANDOLE_RANK']))\nimport farandole as f; f.init()"
    done = farandole("run", "-np", "2", "-x", "FARANDOLE_START_TIMEOUT_S=2m", "--", *python(code))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words, text",
    [
        (["--start-timeout", "nan"], "--start-timeout: 'nan' is not a finite number, 0 or more"),
        (["--start-timeout", "inf"], "--start-timeout: 'inf' is not a finite number, 0 or more"),
        (["--start-timeout", "-5"], "--start-timeout: '-5' is not a finite number, 0 or more"),
        (["-x", "FARANDOLE_START_TIMEOUT_S=soon"], "-x FARANDOLE_START_TIMEOUT_S = 'soon' is not a duration such as"),
        (["-x", "FARANDOLE_LOST_AFTER_S=soon"], "-x FARANDOLE_LOST_AFTER_S = 'soon' is not a duration such as"),
        (["-x", "FARANDOLE_START_TIMEOUT_S=nan"], "-x FARANDOLE_START_TIMEOUT_S = 'nan' is not a duration such as"),
    ],
)
def test_a_malformed_limit_is_refused(words, text):
    done = farandole("run", "-np", "1", *words, "--", "true")
    assert done.returncode == 64 and text in done.stderr, done.stderr


def test_run_joins_its_ranks():
    code = "import farandole as f, numpy as n; f.init(); print(f.allreduce(n.ones(1) * f.rank())[0]); f.shutdown()"
    done = farandole("run", "-np", "2", *python(code))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 1.0", "[1] 1.0"]


def test_run_restarts_its_ranks():
    code = (
        "import farandole as f, numpy as n\n"
        "for turn in range(4):\n"
        "    f.init(); assert f.allreduce(n.ones(1))[0] == 2; f.shutdown()\n"
        "print('well')"
    )
    done = farandole("run", "-np", "2", *python(code))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] well", "[1] well"]


def run_on_nodes(count, ranks, command):
    """One launcher a node, all on this host. Returns their exit codes, outputs and errors."""
    place = f"127.0.0.1:{free_port()}"
    variables = dict(os.environ, FARANDOLE_JOB_KEY="one secret on all nodes")
    arguments = ["-np", str(ranks), "--nnodes", str(count), "--rendezvous", place]
    nodes = [
        subprocess.Popen(
            [FARANDOLE, "run", *arguments, "--node-rank", str(node), "--", *command],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(count)
    ]
    printed = [node.communicate(timeout=allowed(60)) for node in nodes]
    return [node.returncode for node in nodes], [one[0] for one in printed], [one[1] for one in printed]


def test_run_on_two_nodes_is_one_world():
    code = (
        "import farandole as f, numpy as n; f.init(); print(f.rank(), f.size(), f.allreduce(n.ones(1))[0]); "
        "f.shutdown()"
    )
    codes, outputs, errors = run_on_nodes(2, 1, python(code))
    assert codes == [0, 0], errors
    assert outputs == ["[0] 0 2 2.0\n", "[1] 1 2 2.0\n"]


# Four ranks on two nodes. A rank that ends by a signal or by itself, when the others begin to connect, is named on
# both; the limit of the start is 30 s.
@pytest.mark.parametrize("victim", [1, 2, 3])
@pytest.mark.parametrize(("end", "how"), [("sys.exit(7)", "exit code 7"), ("os.kill(os.getpid(), 9)", "signal 9")])
def test_a_rank_that_ends_before_init_is_named_on_all_nodes(victim, end, how, tmp_path):
    code = (
        f"import farandole as f, os, sys, time\nmark = '{tmp_path}/'\nme = os.environ['FARANDOLE_RANK']\n"
        f"while me == '{victim}' and len(os.listdir(mark)) < 3: time.sleep(0.01)\n"
        f"if me == '{victim}': {end}\nopen(mark + me, 'w').close()\nf.init()"
    )
    begin = time.monotonic()
    codes, _, errors = run_on_nodes(2, 2, python(code))
    assert time.monotonic() - begin < 25, errors
    assert codes[victim // 2] == (7 if how == "exit code 7" else 137), errors
    other = 1 - victim // 2
    assert codes[other] == 202, errors
    assert f"rank {victim} (process " in errors[other] and f"ended before it had joined the job: {how}" in errors[other]
    assert "as a consequence: another rank had ended before it joined" in errors[other], errors


# The others connect seconds after the launcher of the first node has ended its own ranks.
@pytest.mark.parametrize("end", ["sys.exit(7)", "os.kill(os.getpid(), 9)"])
def test_a_rank_that_ends_long_before_the_init_of_other_nodes_is_named_there(end):
    code = (
        "import farandole as f, os, sys, time\nme = os.environ['FARANDOLE_RANK']\n"
        f"if me == '0': {end}\ntime.sleep(6)\nf.init()"
    )
    begin = time.monotonic()
    codes, _, errors = run_on_nodes(2, 2, python(code))
    assert time.monotonic() - begin < 25, errors
    assert codes == [7 if "exit" in end else 137, 202], errors
    assert "rank 0 (process " in errors[1] and "ended before it had joined the job" in errors[1], errors
    assert "waiting at most 9 s for the ranks of other nodes" in errors[0], errors


# The launcher of the second node cannot know whether its rank had joined; the coordinator can.
@pytest.mark.parametrize("victim", [1, 2, 3])
def test_a_rank_that_ends_well_before_init_is_named_on_all_nodes(victim):
    code = (
        f"import os, sys\nif os.environ['FARANDOLE_RANK'] == '{victim}': sys.exit(0)\nimport farandole as f; f.init()"
    )
    begin = time.monotonic()
    codes, _, errors = run_on_nodes(2, 2, python(code))
    assert time.monotonic() - begin < 25, errors
    assert 0 not in codes, errors
    for text in errors:
        assert f"rank {victim} (process " in text and "ended before it had joined the job: exit code 0" in text, errors


def test_ctrl_c_ends_the_wait_for_ranks_of_other_nodes():
    variables = dict(os.environ, FARANDOLE_JOB_KEY="one secret on all nodes")
    arguments = ["-np", "1", "--nnodes", "2", "--node-rank", "0", "--rendezvous", f"127.0.0.1:{free_port()}"]
    launcher = subprocess.Popen(
        [FARANDOLE, "run", *arguments, "--", "false"], env=variables, stderr=subprocess.PIPE, text=True
    )
    for line in launcher.stderr:
        if "waiting at most" in line:
            break
    begin = time.monotonic()
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(allowed(20)) == -signal.SIGINT
    assert time.monotonic() - begin < 5
    launcher.stderr.close()


def test_a_rank_that_ends_well_before_init_is_named_on_its_host():
    code = "import os, sys\nif os.environ['FARANDOLE_RANK'] == '1': sys.exit(0)\nimport farandole as f; f.init()"
    begin = time.monotonic()
    done = farandole("run", "-np", "2", *python(code))
    assert time.monotonic() - begin < 25
    assert done.returncode != 0
    assert re.search(r"rank 1 \(process \d+ on .*\) ended before it had joined the job: exit code 0", done.stderr)


def test_run_exits_with_the_code_of_the_first_failed_rank_and_names_it():
    script = "if [ $FARANDOLE_RANK = 1 ]; then echo the reason; exit 7; else sleep 60; fi"
    begin = time.monotonic()
    done = farandole("run", "-np", "3", "--", "sh", "-c", script)
    assert done.returncode == 7
    assert "rank 1" in done.stderr and "exit code 7" in done.stderr and "    the reason" in done.stderr
    assert time.monotonic() - begin < 30


def test_run_names_the_signal_and_leaves_nothing_behind():
    # Each rank leaves a grandchild in a session of its own.
    mark = f"farandole-leftover-{os.getpid()}"
    script = f"setsid sh -c 'exec -a {mark} sleep 300' & if [ $FARANDOLE_RANK = 0 ]; then kill -9 $$; else sleep 60; fi"
    done = farandole("run", "-np", "2", "--", "bash", "-c", script.replace("sh -c", "bash -c"))
    assert done.returncode == 137
    assert "rank 0" in done.stderr and "signal 9" in done.stderr
    assert subprocess.run(["pgrep", "-f", mark], capture_output=True).returncode == 1


def _until_gone(mark):
    # The zombie of a process that no one has reaped yet has no command line any more.
    end = time.monotonic() + allowed(20)
    while subprocess.run(["pgrep", "-f", mark], capture_output=True).returncode == 0:
        assert time.monotonic() < end, f"{mark} still runs"
        time.sleep(0.05)


@pytest.mark.parametrize("elastic", [False, True])
def test_run_that_is_killed_leaves_nothing_behind(elastic):
    mark = f"farandole-orphan-{os.getpid()}-{elastic}"
    script = f"setsid bash -c 'exec -a {mark} sleep 300' & (setsid bash -c 'sleep 300; : {mark}' &); echo ready; wait"
    options = ["--min-np", "1"] if elastic else []
    with subprocess.Popen([FARANDOLE, "run", "-np", "2", *options, "--", "bash", "-c", script], stdout=subprocess.PIPE,
                          text=True) as job:  # fmt: skip
        assert {job.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
        assert subprocess.run(["pgrep", "-f", mark], capture_output=True).returncode == 0
        job.kill()
        job.wait(allowed(10))
        _until_gone(mark)


# A variable of -x wins over the environment in the launcher too.
@pytest.mark.parametrize(
    "options, limit",
    [([], "0.5"), (["-x", "FARANDOLE_LOST_AFTER_S=0.5"], ""), (["-x", "FARANDOLE_LOST_AFTER_S=500ms"], "2h")],
)
def test_run_ends_a_rank_that_is_stopped_after_all_others_have_ended(options, limit):
    script = "if [ $FARANDOLE_RANK = 1 ]; then kill -STOP $$; echo continued; fi"
    done = farandole(
        "run", "-np", "3", *options, "--", "sh", "-c", script, environment={"FARANDOLE_LOST_AFTER_S": limit}
    )
    assert done.returncode == 137, done.stderr
    assert "farandole run: rank 1 (process " in done.stderr and "was stopped by signal 19 (Stopped" in done.stderr
    words = "is stopped, and all others have ended; it is killed if it does not continue within 0.5 s"
    assert done.stderr.count(words) == 1
    assert "did not continue for 0.5 s (FARANDOLE_LOST_AFTER_S): it was killed" in done.stderr
    assert "memory limit" not in done.stderr and "continued" not in done.stdout


def test_run_waits_for_a_stopped_rank_that_continues():
    script = "if [ $FARANDOLE_RANK = 1 ]; then (sleep 1; kill -CONT $$) & kill -STOP $$; sleep 1; echo done; fi"
    done = farandole("run", "-np", "2", "--", "bash", "-c", script, environment={"FARANDOLE_LOST_AFTER_S": "60"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1] done\n"
    assert "is stopped, and all others have ended" in done.stderr and ") continues\n" in done.stderr


def test_the_launcher_has_the_job_key_of_its_ranks():
    task = python("import farandole as f; f.init(); print(f.size())")
    done = farandole("run", "-np", "2", "-x", "FARANDOLE_JOB_KEY=0123456789abcdef", "--", *task)
    assert done.returncode == 0 and sorted(done.stdout.splitlines()) == ["[0] 2", "[1] 2"], done.stderr


STALLS = """
import farandole, numpy, threading, warnings
warned = threading.Event()
texts = []
def show(message, category, *_):
    texts.append(f"{category.__name__}: {message}")
    warned.set()
warnings.simplefilter("always")
warnings.showwarning = show
farandole.init()
if farandole.rank() == 1:
    assert warned.wait(30)
assert farandole.allreduce(numpy.ones(1), name="late", op=farandole.Op.SUM)[0] == 3
assert warned.wait(30)
print(texts[0])
"""


def test_a_stall_is_printed_by_run_and_is_a_warning_in_all_ranks():
    done = farandole("run", "-np", "3", *python(STALLS), environment={"FARANDOLE_STALL_WARNING_S": "0.3"})
    assert done.returncode == 0, done.stderr
    printed = [
        line
        for line in done.stderr.splitlines()
        if line.startswith("farandole run: 'allreduce.late' (allreduce) has waited")
    ]
    assert printed and len(set(printed)) == len(printed), done.stderr
    text = printed[0].removeprefix("farandole run: ")
    assert "missing: rank 1 (" in text
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] StallWarning: {text}" for rank in range(3)]


def test_run_forwards_signals():
    script = "trap 'echo got it; exit 3' TERM; echo ready; while true; do sleep 0.05; done"
    with subprocess.Popen([FARANDOLE, "run", "-np", "2", "--", "bash", "-c", script], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as job:  # fmt: skip
        assert {job.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
        job.send_signal(signal.SIGTERM)
        output, _ = job.communicate(timeout=allowed(30))
        assert sorted(output.splitlines()) == ["[0] got it", "[1] got it"]
        assert job.returncode == 143


# As under nohup, and as a command that a script starts in the background.
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_was_ignored_at_the_start_does_not_end_the_job(number, tmp_path):
    script = f"echo ready; until test -e {tmp_path}/go; do sleep 0.05; done"
    before = signal.signal(number, signal.SIG_IGN)
    try:
        job = subprocess.Popen(
            [FARANDOLE, "run", "-np", "1", "--", "bash", "-c", script], stdout=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(number, before)
    with job:
        assert job.stdout.readline() == "[0] ready\n"
        job.send_signal(number)
        time.sleep(0.5)
        (tmp_path / "go").touch()
        assert job.wait(allowed(30)) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "-np", "2"], 64, "give a command"),
        (["run", "-np", "0", "true"], 64, "0"),
        (["run", "-np", "1", "--nnodes", "2", "true"], 64, "--node-rank"),
        (["run", "-np", "1", "--nnodes", "2", "--node-rank", "0", "true"], 64, "--rendezvous"),
        (["run", "-np", "lots", "true"], 64, "'lots'"),
        (["run", "--nnodes", "4:2", "true"], 64, "'4:2'"),
        (["run", "-np", "1", "--nnodes", "2", "--node-rank", "2", "--rendezvous", "x:1", "true"], 64, "--node-rank"),
        (
            ["run", "-np", "1", "--nnodes", "2", "--node-rank", "0", "--rendezvous", "127.0.0.1:1", "true"],
            78,
            "FARANDOLE_JOB_KEY",
        ),
        (["fly"], 64, "fly"),
        (["bench", "--collective", "allreduced"], 64, "'allreduced'"),
        (["bench", "--sizes", "4,lots"], 64, "'lots'"),
        (["bench", "--dtype", "float31"], 64, "'float31'"),
        (["bench", "--transport", "nonsense", "--ranks", "2"], 78, "transport 'nonsense' is not known to this build"),
        (["tune", "--transports", "nonsense", "--ranks", "2"], 78, "transport 'nonsense' is not known to this build"),
        (["explain", "--collective", "nothing"], 64, "'nothing'"),
        (["explain", "--algorithm", "quickest"], 64, "'quickest'"),
    ],
)
def test_malformed_arguments_are_quoted(arguments, code, words):
    done = farandole(*arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr, done.stderr


def test_run_names_a_program_that_cannot_start():
    done = farandole("run", "-np", "1", "--", "/no/such/program")
    assert done.returncode != 0
    assert "/no/such/program" in done.stderr


# ---- bench -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["shm", "tcp", "loopback"])
def test_bench_prints_one_object_a_line(transport):
    done = farandole("bench", "--ranks", "2", "--transport", transport, "--sizes", "4,64K", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["bytes"] for row in rows] == [4, 65536]
    for row in rows:
        assert list(row) == ["collective", "transport", "algorithm", "ranks", "bytes", "dtype", "time_us_median",
                             "time_us_min", "algbw_GBps", "busbw_GBps"]  # fmt: skip
        assert (row["collective"], row["transport"], row["ranks"]) == ("allreduce", transport, 2)
        assert 0 < row["time_us_min"] <= row["time_us_median"]
        assert abs(row["busbw_GBps"] - row["algbw_GBps"]) < 1e-9  # 2 (p - 1) / p is 1 for two ranks


@pytest.mark.parametrize(
    "collective",
    ["reduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "gather", "scatter", "barrier"],
)
def test_bench_checks_every_collective(collective):
    done = farandole("bench", "--ranks", "3", "--collective", collective, "--sizes", "12K", "--dtype", "bfloat16")
    assert done.returncode == 0, done.stderr
    assert "memcpy of one core" in done.stdout


# ---- env, config, explain --------------------------------------------------------------------------------------------


def test_env_prints_rank_and_source():
    done = farandole("env", "--json", environment={"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1",
                                                   "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a-0.a",
                                                   "MASTER_PORT": "29500"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result) == [
        "rank",
        "size",
        "local_rank",
        "local_size",
        "node_rank",
        "node_count",
        "source",
        "rendezvous",
    ]
    assert (result["rank"], result["size"], result["local_rank"], result["source"]) == (3, 8, 1, "torchrun")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"FARANDOLE_RANK": "1"}, ["FARANDOLE_RANK", "FARANDOLE_SIZE"]),
        ({"FARANDOLE_RANK": "x", "FARANDOLE_SIZE": "2"}, ["'x'", "FARANDOLE_RANK"]),
        ({"FARANDOLE_RANK": "2", "FARANDOLE_SIZE": "2"}, ["2"]),
        ({"FARANDOLE_SLICE_BYTES": "thick"}, ["'thick'", "FARANDOLE_SLICE_BYTES"]),
    ],
)
def test_env_rejects_contradictions(environment, words):
    done = farandole("env", environment=environment)
    assert done.returncode == 78
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    "environment",
    [
        {"FARANDOLE_RANK": "{}", "FARANDOLE_SIZE": "2"},
        {"FARANDOLE_RANK": "0", "FARANDOLE_SIZE": "2", "FARANDOLE_RENDEZVOUS": "{}"},
        {"FARANDOLE_SLICE_BYTES": "{}"},
        {"FARANDOLE_AUTOTUNE_LOG": "{}"},
    ],
)
def test_a_terminal_does_not_interpret_the_values_of_variables(environment):
    values = {name: value.format("a\x1b[2Jb\nc") for name, value in environment.items()}
    shown = ""
    for words in [["env"], ["env", "--explain"], ["config"]]:
        done = farandole(*words, environment=values)
        assert "\x1b" not in done.stdout + done.stderr, (words, done.stdout, done.stderr)
        shown += done.stdout + done.stderr
    assert r"a\x1b[2Jb\x0ac" in shown, shown


def test_lines_of_json_are_valid_where_a_variable_is_not_utf_8():
    done = farandole("config", "--json", environment={"FARANDOLE_AUTOTUNE_LOG": "/tmp/\udcff\u20ac"})
    assert done.returncode == 0, done.stderr
    (log,) = [one for one in map(json.loads, done.stdout.splitlines()) if one["variable"] == "FARANDOLE_AUTOTUNE_LOG"]
    assert log["value"] == "/tmp/?\u20ac"


SEVERAL_HOSTS = {"FARANDOLE_RANK": "0", "FARANDOLE_SIZE": "2", "FARANDOLE_LOCAL_RANK": "0", "FARANDOLE_LOCAL_SIZE": "1",
                 "FARANDOLE_RENDEZVOUS": "tcp://10.0.0.1:29500", "FARANDOLE_JOB_KEY": "0123456789abcdef"}  # fmt: skip
ONE_HOST = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "a job"}  # fmt: skip
SHRINKS = "each rank: one for fdl_world_shrink, for the whole job"


@pytest.mark.parametrize(
    "environment, opened, not_opened",
    [
        ({}, ["none on one host; on several, rank 0: a free port", SHRINKS + ", under mpirun none"], []),
        ({"FARANDOLE_PORT_BASE": "29500"}, ["rank 0: port 29500 for the coordinator"], ["a free port"]),
        ({"FARANDOLE_METRICS_PORT": "9400"}, ["metrics, from port 9400 on"], []),
        (ONE_HOST, ["ports: none: the ranks meet at a name of this host"], ["coordinator,", "shrink"]),
        (
            SEVERAL_HOSTS,
            ["for the coordinator, for the whole job; " + SHRINKS + "; each rank: one for data"],
            ["mpirun"],
        ),
        (SEVERAL_HOSTS | {"FARANDOLE_TRANSPORT": "shm,mpi"}, ["data goes over MPI"], ["shrink", "one for data"]),
        (
            SEVERAL_HOSTS | {"FARANDOLE_TRANSPORT": "shm,ofi:tcp"},
            [SHRINKS, "data goes over libfabric"],
            ["one for data"],
        ),
        (SEVERAL_HOSTS | {"FARANDOLE_TRANSPORT": "efa"}, ["EFA, which has no ports"], ["one for data"]),
    ],
)
def test_config_says_which_ports_a_job_opens_and_for_how_long(environment, opened, not_opened):
    line = next(line for line in farandole("config", environment=environment).stdout.splitlines() if "ports: " in line)
    assert all(part in line for part in opened) and not any(part in line for part in not_opened), line


@pytest.mark.parametrize("variables, lines", [
    ({}, ["devices: cuda: 8 devices, the first cuda:0 (",
          f"collectives on devices: NCCL 2.32.3 ({fake_devices.NCCL}, set by nccl_library): own_memory, registration, "
          "symmetric"]),
    ({"FAKE_NCCL_VERSION": "21705", "FAKE_CUDA_DEVICES": "1"},
     ["devices: cuda: 1 device, cuda:0", f"collectives on devices: nccl: {fake_devices.NCCL} is NCCL 2.17.5, "
                                         "too old; 2.18 or newer"]),
    ({"FARANDOLE_CUDA_LIBRARY": "/nowhere.so", "FARANDOLE_NCCL_LIBRARY": "/nowhere2.so"},
     ["devices: cuda: the driver /nowhere.so cannot be opened",
      "collectives on devices: nccl: cannot open what nccl_library names (/nowhere2.so"]),
], ids=["both", "NCCL too old", "neither"])  # fmt: skip
def test_config_prints_devices(variables, lines):
    done = farandole("config", environment={**fake_devices.environment(nccl=True), **variables})
    assert done.returncode == 0 and all(f"\n{line}" in done.stdout for line in lines), done.stdout[-1500:]


@pytest.mark.parametrize("abi", ["openmpi", "mpich"])
def test_config_prints_the_library_that_mpi_programs_preload(abi):
    done = farandole("config", "--mpi-preload", abi)
    assert done.returncode == 0, done.stderr
    path = done.stdout.strip()
    assert os.path.isabs(path) and path.endswith(f"/libfarandole_mpi_preload_{abi}.so") and os.path.isfile(path)
    assert farandole("config", "--mpi-preload", "no-mpi").returncode == 64


def test_config_prints_values_and_their_sources():
    done = farandole(
        "config", environment={"HOROVOD_FUSION_THRESHOLD": "4096", "FARANDOLE_JOB_KEY": "0123456789abcdef"}
    )
    assert done.returncode == 0
    assert re.search(r"FARANDOLE_FUSION_BYTES +Bytes +4096 +HOROVOD_FUSION_THRESHOLD", done.stdout)
    assert "0123456789abcdef" not in done.stdout
    assert farandole("config", environment={"FARANDOLE_SPIN_US": "much"}).returncode == 78


# ---- tune ------------------------------------------------------------------------------------------------------------


QUICKLY = ["tune", "--ranks", "2", "--sizes", "64,4K", "--seconds", "0.5"]


def test_tune_prints_a_valid_table(tmp_path):
    done = farandole(*QUICKLY, "--transports", "shm", "--collectives", "allreduce,barrier", "--output", "-")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "farandole tuning 1"
    rows = [line.split() for line in lines if line and not line.startswith(("#", "farandole"))]
    assert [row[:4] for row in rows] == [
        ["allreduce", "shm", "2", "64"], ["allreduce", "shm", "2", "4096"], ["barrier", "shm", "2", "0"]
    ]  # fmt: skip
    ways = {way.split("=")[0] for way in rows[0][4:]}
    assert {"whole", "ring", "recursive_doubling", "direct"} <= ways
    assert all(float(way.split("=")[1]) > 0 for row in rows for way in row[4:])
    table = tmp_path / "table.txt"
    table.write_text(done.stdout)
    result = farandole("config", environment={"FARANDOLE_TUNING": str(table)})
    assert f"tuning table: {table} (3 rows, " in result.stdout, result.stdout


def test_later_jobs_and_explain_use_the_saved_table(tmp_path):
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    done = farandole(*QUICKLY, "--collectives", "allgather", environment=home)
    assert done.returncode == 0, done.stderr
    for word in ["shm, 2 ranks", "tcp, 2 ranks", "allgather", "chosen", "saved in"]:
        assert word in done.stdout, done.stdout
    saved = tmp_path / "farandole" / "tuning.txt"
    assert saved.read_text().count("allgather") == 4
    result = farandole("explain", "--collective", "allgather", "--bytes", "4K", environment=home)
    assert result.returncode == 0, result.stderr
    assert f"tuning table: {saved} (4 rows, " in result.stdout, result.stdout
    assert "where it was measured" in result.stdout, result.stdout
    ran = farandole("bench", "--collective", "allgather", "--sizes", "4K", environment=home)
    assert ran.returncode == 0, ran.stderr


def test_a_table_chooses_algorithms_and_must_be_equal_on_all_ranks(tmp_path):
    table = tmp_path / "table.txt"
    table.write_text("farandole tuning 1\nallreduce shm 2 64 whole=9 double_binary_tree=1 ring=2\n")
    mine = {"FARANDOLE_TUNING": str(table)}
    result = farandole("explain", "--bytes", "64", environment=mine)
    assert "over shm: double_binary_tree\n" in result.stdout, result.stdout
    assert "double_binary_tree took 1.0 us, ring 2.0 us" in result.stdout, result.stdout
    script = f"[ $FARANDOLE_RANK = 0 ] || export FARANDOLE_TUNING=off; {FARANDOLE} bench --launched --sizes 64; true"
    done = farandole("run", "-np", "2", "--", "sh", "-c", script, environment=mine)
    result = done.stderr
    assert result.count("all ranks must have the same tuning table, but rank 0 on") == 2, result
    assert result.count("has none; name one table on all ranks with FARANDOLE_TUNING") == 2, result


def test_tune_rejects_invalid_options(tmp_path):
    for arguments, words in [
        (["--collectives", "alreduce"], "'alreduce'"),
        (["--sizes", "big"], "'big'"),
        (["--ranks", "1"], "--ranks"),
    ]:
        done = farandole("tune", *arguments)
        assert done.returncode == 64, done.stderr
        assert words in done.stderr, done.stderr
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear reader")
    done = farandole(*QUICKLY, "--transports", "shm", "--collectives", "barrier", "--output", str(letter))
    assert done.returncode == 78, done.stderr
    assert "letter.txt, line 1" in done.stderr, done.stderr
    assert letter.read_text() == "Dear reader"
    # The time limit of the measurements is longer than that of the command.
    slowly = ["tune", "--ranks", "2", "--transports", "shm", "--seconds", "10000", "--output"]
    for output, words in [(letter, "letter.txt, line 1"), (letter / "below", "below cannot be written")]:
        done = farandole(*slowly, str(output))
        assert done.returncode == 78 and words in done.stderr, done.stderr


# ---- explain ---------------------------------------------------------------------------------------------------------


def test_explain_shows_choice_steps_and_rivals():
    done = farandole("explain", "--collective", "allreduce", "--ranks", "6", "--bytes", "1M")
    assert done.returncode == 0, done.stderr
    for word in ["6 ranks", "rank 5", "recv_reduce", "predicted", "double_binary_tree"]:
        assert word in done.stdout, done.stdout


# A simulation of 4096 ranks would take hours.
def test_explain_takes_large_groups():
    done = farandole("explain", "--ranks", "4096", "--hosts", "512", "--bytes", "1G")
    assert done.returncode == 0, done.stderr
    (header,) = (line for line in done.stdout.splitlines() if "predicted from" in line)
    assert "by formulas (`farandole simulate`" in header
    (ring,) = (line for line in done.stdout.splitlines() if re.match("(->)? +ring ", line))
    assert float(ring.removeprefix("->").split()[1]) > 0
    assert "(the schedules of the other 4095 ranks are alike)" in done.stdout


def test_explain_refuses_more_hosts_than_ranks():
    done = farandole("explain", "--ranks", "8", "--hosts", "9")
    assert done.returncode == 64
    assert "--hosts 9: 8 ranks are on at most 8 hosts" in done.stderr


@pytest.mark.parametrize("transport", ["abc", "shm,tcp", "shm+", "tcp+abc", "TCP", ":tcp"])
def test_explain_refuses_an_unknown_transport(transport):
    done = farandole("explain", "--transport", transport)
    assert done.returncode == 64 and done.stdout == ""
    assert f"farandole explain: --transport '{transport}': '" in done.stderr
    assert "is not one of shm, tcp, efa, ofi, mpi, loopback; several are joined by +: shm+tcp" in done.stderr


def test_explain_quotes_control_characters_of_a_transport():
    done = farandole("explain", "--transport", "a\x1b[2Jb")
    assert done.returncode == 64
    assert r"--transport 'a\x1b[2Jb': 'a\x1b[2Jb' is not one of" in done.stderr


@pytest.mark.parametrize("transport", ["shm+efa", "ofi:tcp;ofi_rxm", "mpi"])
def test_explain_takes_transports_that_a_build_may_lack(transport):
    done = farandole("explain", "--transport", transport)
    assert done.returncode == 0 and f"over {transport}: " in done.stdout, done.stderr


# ---- NUMA nodes ------------------------------------------------------------------------------------------------------


def test_explain_describes_numa_levels():
    one = farandole("explain", "--ranks", "4", environment={"HWLOC_SYNTHETIC": "numa:1 core:4 pu:1"})
    assert "NUMA: one node (this machine has one), so there are no levels\n" in one.stdout, one.stderr
    machine = {"HWLOC_SYNTHETIC": "numa:2 core:2 pu:1"}
    two = farandole("explain", "--ranks", "4", environment=machine)
    assert "NUMA: 2 nodes: ranks 0-1 and 2-3 (this machine's, if ranks are bound to them in blocks)" in two.stdout
    assert (
        "NUMA levels: used: " in two.stdout
        and "node 1: ranks 2-3 fold their inputs upon the sum of node 0" in two.stdout
    )
    result = [
        json.loads(farandole("explain", "--ranks", "4", "--json", *more, environment=machine).stdout)
        for more in [[], ["--bytes", "4K"], ["--nodes", "0,1,0,1"], ["--algorithm", "ring"], ["--transport", "tcp"]]
    ]
    assert [each["numa_levels"] for each in result] == [True, False, False, False, False]
    assert result[0]["numa_nodes"] == [{"node": 0, "ranks": "0-1"}, {"node": 1, "ranks": "2-3"}]
    assert [each["chosen"] for each in result[0]["ways"]].count(True) == 1
    for answer, reason in zip(result[1:], ["below 64 KiB", "not neighbours", "a schedule", "share no memory"]):
        assert reason in answer["numa_why"] and answer["numa_stages"] == []
    for wrong in ["0,0", "0,0,1,x", "0,0,1,"]:
        assert farandole("explain", "--ranks", "4", "--nodes", wrong).returncode == 64
    config = farandole("config", environment=machine)
    assert "NUMA nodes: 0 (2 cores), 1 (2 cores); this process is bound to " in config.stdout


# hwloc gets a machine whose cores are NUMA nodes, and two ranks are bound to each: the job uses levels.
def test_ranks_on_two_numa_nodes_use_levels_and_get_exact_sums():
    code = (
        "import os\n"
        "rank = int(os.environ['FARANDOLE_RANK'])\n"
        "os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank // 2]})\n"
        "import farandole as f, numpy as n\n"
        "f.init()\n"
        "for count in [1, 16384, 300_007]:\n"
        "    ramp = n.arange(count, dtype=n.float32) % 1000\n"
        "    total = f.allreduce(ramp * (f.rank() + 1), op=f.SUM)\n"
        "    assert (total == ramp * 10).all()\n"
        "    assert (f.broadcast(ramp + f.rank(), root=3) == ramp + 3).all()\n"
        "f.shutdown()\n"
        "print('exact')"
    )
    machine = {"HWLOC_SYNTHETIC": "numa:1024 pu:1", "FARANDOLE_LOG_LEVEL": "debug"}
    done = farandole("run", "-np", "4", *python(code), environment=machine)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] exact" for r in range(4)]
    assert (
        "2 NUMA nodes, ranks 0-1 and 2-3; large sums, broadcasts and allgathers cross between them once a node"
        in done.stderr
    )
    assert not re.search("hwloc|warning", done.stderr, re.IGNORECASE), done.stderr


def test_too_few_descriptors_for_the_ranks_end_the_run_with_a_code_of_its_own():
    limits = (100, 100)
    done = subprocess.run(
        [FARANDOLE, "run", "-np", "40", "--", "sleep", "60"],
        capture_output=True,
        text=True,
        timeout=allowed(60),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
    )
    assert done.returncode == 71, done.stderr
    assert re.search(r"raise `ulimit -n`, while starting rank \d+", done.stderr)


# The table of bench is printed by a rank, which is a process of its own.
@pytest.mark.parametrize(
    "command", ["config", "explain --ranks 4", "env", "--version", "--help", "bench --ranks 2 --sizes 4"]
)
def test_output_that_cannot_be_written_is_an_error(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "farandole", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=allowed(60),
        )
    assert done.returncode == 74, done.stderr
    assert re.fullmatch("farandole: standard output cannot be written(: No space left on device)?\n", done.stderr)


def test_output_closed_early_ends_the_command_without_an_error():
    command = f"'{sys.executable}' -m farandole config | head -n 1; echo ${{PIPESTATUS[0]}} >&2"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=allowed(60))
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr in ("0\n", "141\n"), done.stderr  # finished before head did, or ended by SIGPIPE
