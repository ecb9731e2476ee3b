"""The command `farandole simulate`: tables, JSON, pictures, and what it refuses."""

import json
import os
import re
import subprocess
import xml.etree.ElementTree

import pytest
from launch import FARANDOLE


def simulate(*arguments, timeout=120):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    return subprocess.run(
        [FARANDOLE, "simulate", *arguments], env=variables, capture_output=True, text=True, timeout=timeout
    )


def rows_of(*arguments):
    done = simulate(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_ring_takes_the_time_of_its_formula():
    (row,) = rows_of("--hosts", "4", "--link", "8Gbit,10us,0.5us", "--bytes", "4M", "--algorithm", "ring",
                     "--reduce-speed", "1000TB")  # fmt: skip
    # Six messages of 1 MiB in four slices, which stream: the overheads of all but the last slice are hidden.
    assert row["messages"] == 6
    assert row["sent_bytes"] == 6 << 20
    at_least = 6 * (1 << 20) / 1e9 * 1e6
    assert at_least < row["time_us"] < at_least + 6 * 4 * 11
    assert row["busbw_GBps"] == pytest.approx(1.5 * (4 << 20) / row["time_us"] * 1e-3, rel=1e-4)


def test_all_algorithms_of_32768_ranks():
    rows = rows_of("--hosts", "4096", "--ranks-per-host", "8", "--bytes", "4", "--algorithm",
                   "whole,ring,recursive_doubling,binomial_tree")  # fmt: skip
    whole, ring, doubling, tree = rows
    assert whole["chosen"]
    assert whole["algorithm"] == "whole: recursive_doubling between hosts"
    assert "too many to simulate" in ring["refused"]
    assert (doubling["ranks"], doubling["messages"], doubling["simulated_ranks"]) == (32768, 15, 8)
    assert (tree["messages"], tree["simulated_ranks"]) == (15, 32768)
    assert all(row["time_us"] >= row["bound_us"] for row in (whole, doubling, tree))


def test_the_same_seed_gives_the_same_output():
    arguments = ("--hosts", "8", "--noise", "20%", "--stragglers", "1:1ms", "--bytes", "64K", "--json")
    first = simulate(*arguments, "--seed", "7").stdout
    assert first == simulate(*arguments, "--seed", "7").stdout
    assert first != simulate(*arguments, "--seed", "8").stdout


def test_the_table_marks_the_choice_and_the_bound():
    done = simulate("--hosts", "4", "--bytes", "1M", "--topology", "rack:2,2:1")
    assert done.returncode == 0, done.stderr
    assert "racks of 2 hosts, 2:1" in done.stdout
    assert sum(line.startswith("-> ") for line in done.stdout.splitlines()) == 1
    assert "lower bound: " in done.stdout


def test_levels_of_switches_add_latency_and_narrow_uplinks():
    arguments = ("--hosts", "64", "--bytes", "1M", "--algorithm", "recursive_doubling", "--link", "8Gbit,10us,0us",
                 "--slice", "1M", "--reduce-speed", "1000TB")  # fmt: skip

    def time_us(topology):
        (row,) = rows_of(*arguments, "--topology", topology)
        assert row["time_us"] >= row["bound_us"]
        return row["time_us"]

    round_us = (1 << 20) / 1e3  # a message that has the card of its host for itself
    assert time_us("flat") == pytest.approx(6 * (round_us + 10), rel=1e-4)
    assert time_us("rack:8,2:1") == pytest.approx(6 * (round_us + 10) + 3 * round_us, rel=1e-4)
    # Three rounds stay in the rack, two in the zone, and one crosses both.
    levels = time_us("zone:32,2:1,400us/rack:8,2:1,5us")
    assert levels == pytest.approx(6 * (round_us + 10) + 2 * (round_us + 5) + (3 * round_us + 405), rel=1e-4)


def test_the_table_names_all_levels():
    done = simulate("--hosts", "16", "--bytes", "4", "--topology", "zone:8,4:1,400us/rack:2", "--algorithm", "ring")
    assert done.returncode == 0, done.stderr
    assert "; zones of 8 hosts, 4:1, latency +400 us; racks of 2 hosts, 1:1\n" in done.stdout


@pytest.mark.parametrize("axis", [("--bytes", "4:1M", "--hosts", "8"), ("--hosts", "2:16", "--bytes", "64K")])
def test_the_picture_is_well_formed(tmp_path, axis):
    path = tmp_path / "times.svg"
    done = simulate(*axis, "--svg", str(path))
    assert done.returncode == 0, done.stderr
    texts = [element.text for element in xml.etree.ElementTree.parse(path).iter() if element.tag.endswith("text")]
    assert {"lower bound", "ring", "halving_doubling"} <= set(texts)
    assert ("ranks" if axis[0] == "--hosts" else "bytes of the vector") in texts


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--link", "100,10us,0.5us"], "--link: '100' is not a bandwidth"),
        (["--link", "0Gbit,10us,0.5us"], "'0Gbit' is not a bandwidth above 0"),
        (["--link", "100Gbit,10,0.5us"], "'10' is not a time"),
        (["--link", "100Gbit"], "BANDWIDTH,LATENCY,OVERHEAD"),
        (["--topology", "ring"], "'ring' is not a topology"),
        (["--topology", "rack:32,2:1", "--hosts", "4"], "each rack holds between 1 and all 4 hosts, not 32"),
        (
            ["--topology", "rack:32/zone:512"],
            "'rack:32/zone:512' is not a topology: flat, or levels of switches as NAME",
        ),
        (["--topology", "zone:4,2/rack:2"], "such as rack:32,2:1"),
        (
            ["--topology", "zone:4/rack:3"],
            "each zone has 4 hosts, which is not a larger multiple of the 3 hosts of each",
        ),
        (["--hosts", "0"], "--hosts: '0'"),
        (["--hosts", "70000"], "70000"),
        (["--hosts", "65536", "--ranks-per-host", "2"], "more than 65536 ranks"),
        (["--ranks-per-host", "0"], "--ranks-per-host"),
        (["--bytes", "0"], "--bytes: '0'"),
        (["--bytes", "6"], "not a multiple of the 4 bytes"),
        (["--bytes", "99999999G"], "--bytes: '99999999G'"),
        (["--bytes", "1M:4"], "from a smaller to a larger number"),
        (["--collective", "everything"], "none of allreduce, reduce, broadcast"),
        (["--algorithm", "quickest"], "it has: ring, recursive_doubling"),
        (["--algorithm", "whole"], "several hosts with several ranks each"),
        (["--noise", "lots"], "--noise: 'lots'"),
        (["--stragglers", "9:1ms"], "9 stragglers are not between 0 and all 4 ranks"),
        (["--slice", "0"], "--slice: '0'"),
        (["--hosts", "2,4", "--bytes", "4,8", "--svg", "x.svg"], "not both"),
        (["--steps", "resnet"], "--steps: 'resnet' is none of resnet50 and bert-base"),
        (["--steps", "resnet50", "--bytes", "4"], "--bytes excludes --steps"),
        (["--compute", "1s"], "--compute requires --steps"),
        (["--steps", "1M", "--compute", "1"], "--compute: '1' is not a time"),
        (["--steps", "1M", "--backward", "101%"], "--backward: at most 100%"),
        (["--steps", "1M", "--collective", "reduce"], "leave out --collective"),
        (["--steps", "1M", "--hosts", "1", "--ranks-per-host", "4"], "shared memory, which is not simulated"),
    ],
)
def test_malformed_arguments_are_named(arguments, words):
    done = simulate(*arguments)
    assert done.returncode == 64, done.stderr
    assert words in done.stderr, done.stderr


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "alltoall",
                                        "gather", "scatter", "barrier"])  # fmt: skip
def test_every_collective_is_simulated_from_one_rank_on(collective):
    for shape in (
        ["--hosts", "1"],
        ["--hosts", "1", "--ranks-per-host", "3"],
        ["--hosts", "2", "--ranks-per-host", "3"],
    ):
        rows = rows_of(*shape, "--collective", collective, "--bytes", "60")
        assert all(row["time_us"] >= row["bound_us"] * (1 - 1e-5) for row in rows if "refused" not in row), rows
        assert any("time_us" in row for row in rows)


def test_steps_hide_communication_behind_the_backward_pass():
    arguments = ("--hosts", "2:64", "--ranks-per-host", "8", "--steps", "resnet50")
    slow = rows_of(*arguments, "--link", "10Gbit,20us,1us", "--compute", "100ms")
    fast = rows_of(*arguments, "--link", "400Gbit,5us,0.3us", "--compute", "400ms")
    assert [row["ranks"] for row in slow] == [16, 32, 64, 128, 256, 512]
    for row in slow + fast:
        assert row["step_us"] == pytest.approx(row["compute_us"] + row["exposed_us"], rel=1e-4)
        assert row["efficiency"] == pytest.approx(row["compute_us"] / row["step_us"], rel=1e-4)
        assert row["communication_us"] >= row["exposed_us"]
    assert all(row["hidden"] > 0.9 and row["efficiency"] > 0.97 for row in fast)
    assert all(row["efficiency"] < 0.9 for row in slow)
    (step,) = rows_of("--hosts", "4", "--steps", "1M", "--compute", "0s", "--algorithm", "ring")
    (alone,) = rows_of("--hosts", "4", "--bytes", "4M", "--algorithm", "ring")
    assert step["step_us"] == alone["time_us"], "one gradient without any computation is one allreduce"


def test_steps_are_a_table_and_a_picture(tmp_path):
    path = tmp_path / "steps.svg"
    done = simulate("--hosts", "2:8", "--steps", "bert-base", "--compute", "300ms", "--svg", str(path))
    assert done.returncode == 0, done.stderr
    assert "a step of bert-base: 199 gradients, 417.6 MiB in " in done.stdout
    assert "efficiency" in done.stdout
    texts = [element.text for element in xml.etree.ElementTree.parse(path).iter() if element.tag.endswith("text")]
    assert {"computation", "step", "communication alone", "ranks"} <= set(texts)


def test_auto_is_refused_where_shared_memory_runs():
    done = simulate("--hosts", "1", "--ranks-per-host", "4", "--algorithm", "auto")
    assert done.returncode == 64
    assert "shared memory, which is not simulated" in done.stderr


def test_a_picture_that_cannot_be_written_is_an_error():
    done = simulate("--svg", "/no/such/folder/x.svg")
    assert done.returncode == 74
    assert "/no/such/folder/x.svg" in done.stderr


def test_tells_what_takes_long():
    small = simulate("--hosts", "8", "--bytes", "4")
    assert small.returncode == 0 and small.stderr == "", small.stderr
    large = simulate("--hosts", "512", "--ranks-per-host", "8", "--bytes", "4", "--algorithm", "recursive_doubling")
    assert large.returncode == 0, large.stderr
    assert re.fullmatch(r"simulating recursive_doubling on 4096 ranks \(\d+ s so far\)\n", large.stderr), large.stderr
    assert "simulating" not in large.stdout


def test_a_start_of_8192_ranks():
    small, large = rows_of("--hosts", "64,1024", "--ranks-per-host", "8", "--start")
    assert (small["ranks"], large["ranks"]) == (512, 8192)
    assert (small["connections"], large["connections"]) == (512, 8192)
    assert small["messages_of_a_rank"] == large["messages_of_a_rank"]
    assert small["connected_s"] < small["table_s"] < small["hosts_s"] < small["memory_s"] < small["time_s"]
    assert small["time_s"] < large["time_s"] < 60


def test_a_start_as_a_table_and_a_picture(tmp_path):
    picture = tmp_path / "start.svg"
    done = simulate("--hosts", "2:8", "--start", "--svg", str(picture))
    assert done.returncode == 0, done.stderr
    assert "in the world" in done.stdout
    assert "a handshake" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r" +[248] ", line)]
    assert [row[0] for row in rows] == ["2", "4", "8"]
    xml.etree.ElementTree.parse(picture)


@pytest.mark.parametrize(
    ("victim", "ranks", "at_least", "at_most"),
    [
        ("rank:7@3s", 1, 0, 0.1),
        ("host:2@500ms", 4, 0, 0.1),
        ("coordinator@3s", 1, 0, 0.1),
        ("rank:7@3s,silent", 1, 10.3, 10.5),
        ("host:2@3s,silent", 4, 10.3, 10.5),
        ("coordinator@3s,silent", 1, 10.3, 11.5),
    ],
)
def test_a_loss(victim, ranks, at_least, at_most):
    (row,) = rows_of("--hosts", "16", "--ranks-per-host", "4", "--lose", victim)
    assert (row["victim"], row["victims"]) == (victim, ranks)
    assert at_least < row["time_s"] < at_most
    assert row["first_s"] <= row["time_s"]


def test_a_loss_as_a_table():
    done = simulate("--hosts", "4", "--ranks-per-host", "2", "--lose", "rank:3@1s")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loss of rank:3@1s while all ranks wait in one allreduce")
    assert "last knows" in done.stdout


def test_the_coordinator_decides_the_time_of_a_start():
    def seconds(costs):
        return rows_of("--hosts", "128", "--start", "--coordinator", costs)[0]["time_s"]

    assert seconds("1ms,8us,1.5GB") > seconds("100us,8us,1.5GB") + 0.1
    assert seconds("100us,1ms,1.5GB") > seconds("100us,8us,1.5GB") + 0.1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--lose", "rank:7"), "give rank:7@3s"),
        (("--lose", "rank:x@3s"), "give rank:7@3s"),
        (("--lose", "rank:-1@3s"), "give rank:7@3s"),
        (("--lose", "node:1@3s"), "give rank:7@3s"),
        (("--lose", "rank:1@soon"), "soon"),
        (("--lose", "rank:4@3s"), "there is no rank 4"),
        (("--lose", "host:9@3s"), "there is no host 9"),
        (("--start", "--coordinator", "150us"), "--coordinator"),
        (("--start", "--coordinator", "x,8us,1GB"), "--coordinator"),
        (("--start", "--hosts", "65536"), "at most 32768 ranks"),
        (("--start", "--lose", "rank:1@3s"), "--lose"),
        (("--start", "--bytes", "1M"), "--bytes"),
        (("--start", "--steps", "resnet50"), "--steps"),
    ],
)
def test_starts_and_losses_that_are_refused(arguments, text):
    done = simulate("--hosts", "4", *arguments) if "--hosts" not in arguments else simulate(*arguments)
    assert done.returncode != 0
    assert text in done.stderr + done.stdout


def test_a_simulated_start_that_fails_ends_with_the_code_of_late_ranks():
    done = simulate("--hosts", "4", "--start", "--stragglers", "1:40s")
    assert done.returncode == 200, done.stderr
    assert "of 4 has not arrived after 30 s" in done.stderr


@pytest.mark.parametrize("hosts", ["0", "65537", "2:65537", "100000000"])
def test_a_number_of_hosts_that_is_refused_names_the_limit(hosts):
    done = simulate("--hosts", hosts)
    assert done.returncode == 64
    assert "is not between 1 and 65536" in done.stderr, done.stderr
