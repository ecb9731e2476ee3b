"""farandole.run, a function on several ranks, and the command horovodrun."""

import inspect
import json
import os
import re
import socket
import subprocess
import sys

import farandole
import horovod
import pytest
import run_tasks
from farandole import hosts, run_rank
from horovod.runner import config_file, launch, options
from launch import FARANDOLE
from limits import allowed

HOROVODRUN = os.path.join(os.path.dirname(sys.executable), "horovodrun")


def clean(**more):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    return {**variables, **more}


# ---- run: results ----------------------------------------------------------------------------------------------------


def test_run_returns_the_results_in_rank_order():
    assert farandole.run(run_tasks.ranks_and_sum, (10,), {"factor": 2}, np=3) == [(0, 3, 36), (1, 3, 36), (2, 3, 36)]


def test_run_starts_one_rank_by_default():
    assert farandole.run(os.getenv, ("FARANDOLE_RANK",)) == ["0"]
    assert farandole.run(os.getenv, ("FARANDOLE_RANK",), num_proc=2, hosts="localhost:2") == ["0", "1"]


def test_results_come_in_rank_order_for_more_than_ten():
    assert farandole.run(os.getenv, ("FARANDOLE_RANK",), np=11) == [str(rank) for rank in range(11)]


def test_the_signature_is_that_of_the_contract():
    printed = [
        "func",
        *(f"{p.name}={p.default!r}" for p in list(inspect.signature(farandole.run).parameters.values())[1:]),
    ]
    assert (
        printed
        == (
            "func args=() kwargs=None num_proc=1 min_num_proc=None max_num_proc=None slots=None reset_limit=None "
            "cooldown_range=None hosts=None hostfile=None host_discovery_script=None start_timeout=None ssh_port=None "
            "ssh_identity_file=None disable_cache=None output_filename=None verbose=None use_gloo=None use_mpi=None "
            "mpi_args=None network_interface=None network_interfaces=None executable=None np=None min_np=None "
            "max_np=None"
        ).split()
    )
    assert horovod.run is farandole.run


def test_pickled_files_are_private_and_are_removed():
    ((folder, mode, others),) = farandole.run(run_tasks.folder_of_the_task, np=1)
    assert (mode, others) == ("0o700", "0o0")
    assert not os.path.exists(folder)


def test_files_of_another_user_are_not_unpickled(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="another user"):
        run_rank._read_folder(str(tmp_path))


# ---- run: failures ---------------------------------------------------------------------------------------------------


def test_the_exception_of_a_rank_is_raised_with_its_rank_and_traceback():
    with pytest.raises(farandole.RankError) as caught:
        farandole.run(run_tasks.one_raises, np=3)
    error = caught.value
    assert isinstance(error, KeyError) and isinstance(error, RuntimeError)
    assert error.rank == 1 and error.__cause__.args == ("the cause",)
    assert str(error).startswith("rank 1 of 3 raised KeyError: 'the cause'")
    assert 'raise KeyError("the cause")' in str(error) and "in one_raises" in str(error)


def test_a_rank_that_was_killed_is_named():
    with pytest.raises(farandole.RankError, match=r"rank 1 of 2 on .* \(process \d+\) ended with signal 9") as caught:
        farandole.run(run_tasks.one_is_killed, np=2)
    assert caught.value.rank == 1


def test_an_exception_that_cannot_be_unpickled_is_raised_as_text():
    with pytest.raises(farandole.RankError, match="Particular: ab") as caught:
        farandole.run(run_tasks.raises_what_cannot_be_made_again, np=1)
    assert caught.value.__cause__ is None


def test_an_exit_of_a_rank_is_reported_as_such():
    with pytest.raises(farandole.RankError, match="rank 0 of 1 raised SystemExit: 7"):
        farandole.run(run_tasks.exits, np=1)


def test_objects_that_cannot_be_pickled_are_reported():
    with pytest.raises(farandole.RankError, match="the result of rank 0 cannot be pickled"):
        farandole.run(run_tasks.returns_a_lock, np=1)
    with pytest.raises(ValueError, match="cannot be pickled"):
        farandole.run(print, (run_tasks.returns_a_lock(),), np=1)


def test_a_function_of_the_main_program_needs_cloudpickle():
    code = (
        "import sys; sys.modules['cloudpickle'] = None\nimport farandole\ndef main(): pass\nfarandole.run(main, np=1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean())
    assert "pip install cloudpickle" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"np": 0}, "at least one rank"),
        ({"np": 3, "hosts": "localhost:2"}, "room for 2"),
        ({"np": 2, "hosts": "localhost:1,elsewhere:1"}, "elsewhere is not this host"),
        ({"hosts": "localhost:x"}, "'localhost:x'"),
        ({"host_discovery_script": "x.sh"}, "host_discovery_script"),
    ],
)
def test_run_rejects_invalid_arguments_before_it_starts_ranks(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        farandole.run(os.getenv, ("FARANDOLE_RANK",), **arguments)


def test_a_missing_executable_is_reported(capfd):
    with pytest.raises(farandole.RankError, match="the launcher ended with exit code"):
        farandole.run(os.getenv, ("FARANDOLE_RANK",), np=1, executable="/no/such/python")
    assert "/no/such/python" in capfd.readouterr().err


# ---- The output of ranks ---------------------------------------------------------------------------------------------


def test_output_is_written_to_a_folder_for_each_rank(tmp_path):
    folder = tmp_path / "logs"
    script = "echo out $FARANDOLE_RANK; echo err $FARANDOLE_RANK >&2; printf 'not ended'"
    done = subprocess.run([FARANDOLE, "run", "-np", "11", "--output-filename", folder, "sh", "-c", script],
                          capture_output=True, text=True, env=clean())  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(folder)) == [f"rank.{rank:02}" for rank in range(11)]
    assert (folder / "rank.07" / "stdout").read_text() == "out 7\nnot ended\n"
    assert (folder / "rank.10" / "stderr").read_text() == "err 10\n"
    assert "[7] out 7\n" in done.stdout  # and to the console as usual


def test_an_impossible_folder_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    done = subprocess.run([FARANDOLE, "run", "-np", "1", "--output-filename", tmp_path / "file", "true"],
                          capture_output=True, text=True, env=clean())  # fmt: skip
    assert done.returncode != 0 and str(tmp_path / "file") in done.stderr


def test_lines_can_have_timestamps():
    done = subprocess.run(
        [FARANDOLE, "run", "-np", "1", "--timestamps", "echo", "hello"], capture_output=True, text=True, env=clean()
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[0\] hello\n", done.stdout), done.stdout


def test_a_report_file_names_the_first_failed_rank(tmp_path):
    done = subprocess.run([FARANDOLE, "run", "-np", "2", "--report", tmp_path / "report", "sh", "-c",
                           "[ $FARANDOLE_RANK = 0 ] || exit 5"], capture_output=True, env=clean())  # fmt: skip
    assert done.returncode == 5
    result = json.loads((tmp_path / "report").read_text())
    assert (result["rank"], result["exit_code"], result["ending"]) == (1, 5, "exit code 5")


# ---- horovodrun ------------------------------------------------------------------------------------------------------


def planned(line):
    text, job = launch.plan([*line.split(), "python", "train.py", "--lr", "1"])
    assert text is None
    return job


def horovodrun(*words, **variables):
    return subprocess.run(
        [HOROVODRUN, *words], capture_output=True, text=True, env=clean(**variables), timeout=allowed(60)
    )


def test_horovodrun_starts_ranks():
    code = (
        "import horovod.torch as hvd, torch; hvd.init(); print(hvd.allreduce(torch.ones(1) * hvd.rank(), op=hvd.Sum))"
    )
    done = horovodrun("-np", "2", "-H", "localhost:2", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] tensor([1.])", "[1] tensor([1.])"]


def test_horovodrun_passes_settings_and_returns_the_exit_code():
    script = "echo $HOROVOD_FUSION_THRESHOLD $HOROVOD_LOG_LEVEL $0 $1; exit 9"
    done = horovodrun(
        "-np", "1", "--fusion-threshold-mb", "32", "--log-level=INFO", "--", "sh", "-c", script, "-np", "-x"
    )
    assert (done.returncode, done.stdout) == (9, "[0] 33554432 info -np -x\n"), done.stderr


SETTINGS = {
    "--fusion-threshold-mb 0.5": ("HOROVOD_FUSION_THRESHOLD", "524288"),
    "--cycle-time-ms 2": ("HOROVOD_CYCLE_TIME", "2"),
    "--cache-capacity 7": ("HOROVOD_CACHE_CAPACITY", "7"),
    "--hierarchical-allreduce": ("HOROVOD_HIERARCHICAL_ALLREDUCE", "1"),
    "--no-hierarchical-allgather": ("HOROVOD_HIERARCHICAL_ALLGATHER", "0"),
    "--torus-allreduce": ("HOROVOD_TORUS_ALLREDUCE", "1"),
    "--autotune": ("HOROVOD_AUTOTUNE", "1"),
    "--autotune-log-file x.csv": ("HOROVOD_AUTOTUNE_LOG", "x.csv"),
    "--timeline-filename t.json": ("HOROVOD_TIMELINE", "t.json"),
    "--timeline-mark-cycles": ("HOROVOD_TIMELINE_MARK_CYCLES", "1"),
    "--no-stall-check": ("HOROVOD_STALL_CHECK_DISABLE", "1"),
    "--stall-check": ("HOROVOD_STALL_CHECK_DISABLE", "0"),
    "--stall-check-warning-time-seconds 5": ("HOROVOD_STALL_CHECK_TIME_SECONDS", "5"),
    "--stall-check-shutdown-time-seconds 9": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "9"),
    "--start-timeout 90": ("HOROVOD_START_TIMEOUT", "90"),
    "--network-interfaces eth0,eth1": ("HOROVOD_GLOO_IFACE", "eth0,eth1"),
    "--gloo-timeout-seconds 40": ("HOROVOD_GLOO_TIMEOUT_SECONDS", "40"),
    "--log-level DEBUG": ("HOROVOD_LOG_LEVEL", "debug"),
    "--log-without-timestamp": ("HOROVOD_LOG_HIDE_TIME", "1"),
    "--thread-affinity 0,1": ("HOROVOD_THREAD_AFFINITY", "0,1"),
}


@pytest.mark.parametrize("line", SETTINGS)
def test_an_option_sets_its_variable(line):
    job = planned(f"-np 2 {line}")
    assert job.variables == dict([SETTINGS[line]])
    assert launch.command_of(job)[1:] == ["run", "--standalone", "-np", "2", "--", "python", "train.py", "--lr", "1"]


RUN_FLAGS = {
    "--output-filename logs": ["--output-filename", "logs"],
    "-prefix-timestamp": ["--timestamps"],
    "--min-num-proc 1": ["--min-np", "1"],
    "--max-np 4": ["--max-np", "4"],
    "--reset-limit 3": ["--reset-limit", "3"],
    "--elastic-timeout 60": ["--elastic-timeout", "60"],
}


@pytest.mark.parametrize("line", RUN_FLAGS)
def test_an_option_sets_an_option_of_farandole_run(line):
    assert launch.command_of(planned(f"-np 2 {line}"))[1:] == [
        "run",
        "--standalone",
        "-np",
        "2",
        *RUN_FLAGS[line],
        "--",
        "python",
        "train.py",
        "--lr",
        "1",
    ]


@pytest.mark.parametrize("line", ["--gloo", "--mpi", "--ssh-port 22", "--disable-cache", "--mpi-args=-x -y", "--tcp"])
def test_an_option_without_effect_is_accepted_and_reported(line):
    words = line.split(" ", 1) if "=" not in line else [line]
    text, job = launch.plan(["-np", "1", *words, "true"])
    assert (text, job.variables, list(job.run)) == (None, {}, ["-np"])
    assert len(job.without_meaning) == 1 and "does nothing here" in job.without_meaning[0]


def test_flags_and_keys_are_unique():
    flags = [flag for option in options.OPTIONS for flag in option.flags]
    assert len(flags) == len(set(flags))
    keys = [option.key for option in options.OPTIONS if option.key]
    assert len(keys) == len(set(keys))
    assert set(launch.BY_FLAG) >= set(
        "-v --version -np --num-proc -cb --check-build --disable-cache --start-timeout --network-interfaces "
        "--network-interface --output-filename --verbose --config-file -p --ssh-port -i --ssh-identity-file "
        "--min-np --min-num-proc --max-np --max-num-proc --slots-per-host --elastic-timeout --reset-limit "
        "--blacklist-cooldown-range --binding-args --num-nccl-streams --no-mpi-threads-disable -H --hosts -hostfile "
        "--host-discovery-script --jsrun --log-with-timestamp --no-autotune --no-timeline-mark-cycles".split()
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "-np 2 --fusion-treshold-mb 3 true",
            "unknown option --fusion-treshold-mb; do you mean --fusion-threshold-mb?",
        ),
        ("-np 2 --zzz true", "unknown option --zzz"),
        ("-np two true", "-np: 'two' is not a number"),
        ("-np", "-np is followed by 1 value"),
        ("-np 2 --autotune=1 true", "--autotune is followed by no values"),
        ("-np 2", "a command to run is missing"),
        ("true", "-np is missing"),
        ("-np 3 -H localhost:2 true", "room for 2"),
        ("-np 2 -H localhost:0 true", "'localhost:0'"),
        ("-np 2 -hostfile /no/such/file true", "/no/such/file"),
        ("-np 2 --config-file /no/such/file true", "/no/such/file"),
        ("-np 2 --host-discovery-script /no/such.sh true", "/no/such.sh"),
        ("-np 2 --host-discovery-script /bin/false true", "/bin/false failed with exit code 1"),
    ],
)
def test_horovodrun_rejects_malformed_arguments(line, words):
    done = horovodrun(*line.split())
    assert done.returncode == 64 and words in done.stderr, done.stderr


def test_horovodrun_explains_how_to_start_on_several_hosts():
    done = horovodrun("-np", "4", "-H", "one:2,two:2", "python", "train.py", "--name", "a b")
    assert done.returncode == 64
    for node, host in enumerate(["one", "two"]):
        expected = (
            f"farandole run --nnodes 2 --node-rank {node} -np 2 --rendezvous one:29400 -- python train.py --name 'a b'"
        )
        assert re.search(re.escape(expected) + rf" +# on {host}", done.stderr), done.stderr
    assert "FARANDOLE_JOB_KEY" in done.stderr and "no ssh" in done.stderr


def test_horovodrun_prints_version_build_and_help():
    version = f"farandole {farandole.__version__}, with the interface of Horovod 0.28.1"
    assert horovodrun("-v").stdout == version + "\n"
    built = horovodrun("-cb").stdout
    assert version in built and "[X] PyTorch" in built and "[ ] MPI" in built
    result = horovodrun("--help").stdout
    assert all(flag in result for flag in launch.BY_FLAG)


def test_verbose_horovodrun_prints_its_command():
    done = horovodrun("-np", "1", "--verbose", "--cache-capacity", "3", "--ssh-port", "9", "true")
    assert done.returncode == 0
    assert re.search(
        r"horovodrun: HOROVOD_CACHE_CAPACITY=3 \S+farandole run --standalone -np 1 -- true", done.stderr
    ), done.stderr
    assert "horovodrun: --ssh-port does nothing here: no ssh is used" in done.stderr


CONFIG = """\
# a comment
controller: gloo
params:
  fusion_threshold_mb: 8   # MiB
  cache-capacity: 12
  hierarchical_allreduce: false
autotune:
  enabled: True
timeline:
    filename: "a file.json"
stall_check:
  enabled: no
  warning_time_seconds: ~
"""


def test_the_command_line_wins_over_a_configuration_file(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    job = planned(f"-np 2 --config-file {tmp_path}/config.yaml --cache-capacity 13")
    assert job.variables == {
        "HOROVOD_FUSION_THRESHOLD": str(8 << 20),
        "HOROVOD_CACHE_CAPACITY": "13",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_TIMELINE": "a file.json",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
    }


def test_every_key_of_the_contract_is_known():
    keys = {
        "params": "fusion_threshold_mb cycle_time_ms cache_capacity hierarchical_allreduce hierarchical_allgather "
        "torus_allreduce",
        "autotune": "enabled log_file warmup_samples steps_per_sample bayes_opt_max_samples gaussian_process_noise",
        "timeline": "filename mark_cycles",
        "stall_check": "enabled warning_time_seconds shutdown_time_seconds",
        "library_options": "mpi_threads_disable num_nccl_streams thread_affinity gloo_timeout_seconds",
        "logging": "level with_timestamp",
    }
    assert launch.BY_KEY.keys() >= {"controller", *(f"{s}.{name}" for s in keys for name in keys[s].split())}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "params:\n  fusion_treshold_mb: 3",
            "unknown key params.fusion_treshold_mb; do you mean params.fusion_threshold_mb?",
        ),
        ("params:\n  fusion_threshold_mb: much", "params.fusion_threshold_mb: 'much' is not a number"),
        ("autotune:\n  enabled: perhaps", "autotune.enabled is true or false, not 'perhaps'"),
        ("params\n", "line 1: 'params' is not 'name: value'"),
        ("  level: info", "line 1: 'level' is indented"),
    ],
)
def test_a_malformed_configuration_file_is_rejected_with_its_line(tmp_path, text, words):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(launch.UsageError, match=re.escape(words)):
        planned(f"-np 1 --config-file {tmp_path}/config.yaml")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x7fELF\x00\xff", r"'\x7fELF\x00\xff'"),
        (b"# mine\na slots=4 or so\n", "line 2: 'a slots=4 or so'"),
        (b"localhost slots=" + b"9" * 5000, "99..."),
        (b"\n" * (1 << 20) + b"\n", "more than 1 MiB"),
    ],
)
def test_a_file_that_is_no_list_of_hosts_or_settings_is_rejected_by_name(tmp_path, data, words):
    (tmp_path / "file").write_bytes(data)
    for option in ("-hostfile", "--config-file"):
        done = horovodrun("-np", "1", option, str(tmp_path / "file"), "true")
        assert done.returncode == 64 and "Traceback" not in done.stderr, done.stderr
        assert str(tmp_path / "file") in done.stderr and words in done.stderr, done.stderr


@pytest.mark.parametrize("text", ["a:0", "a:00", "a b", "localhost:" + "9" * 5000, "localhost:\x1b[2J", "a\udcff:2"])
def test_a_malformed_list_of_hosts_is_rejected(text):
    with pytest.raises(hosts.HostsError, match="is not host:slots") as caught:
        hosts.parse_hosts(text)
    assert len(str(caught.value)) < 500 and str(caught.value).isprintable()


def test_hosts_and_host_files(tmp_path):
    assert hosts.parse_hosts("a:4, b,[::1]:2") == [("a", 4), ("b", 1), ("::1", 2)]
    (tmp_path / "hosts").write_text(f"# mine\n{socket.gethostname()} slots=4\n\nlocalhost:2 # too\n")
    assert hosts.local_slots(hostfile=tmp_path / "hosts") == 6
    (tmp_path / "hosts").write_text("a slots=4 or so\n")
    with pytest.raises(hosts.HostsError, match="line 1"):
        hosts.parse_hostfile(tmp_path / "hosts")
    assert config_file.read_config_file(os.devnull) == {}
