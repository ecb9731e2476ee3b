"""The location of a host in the network: where `farandole` finds it, and what ranks do with a wrong one."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
from launch import FARANDOLE
from limits import allowed
from test_efa_jobs import run_on_two_hosts

UNKNOWN = "not known (set FARANDOLE_LOCATION or FARANDOLE_TOPOLOGY)"
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_JOB_ID": "7",
    "SLURM_TOPOLOGY_ADDR": "s0.s4.tux7",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
}
ANSWER = {
    "Instances": [
        {"InstanceId": "i-0af01c0123456789a", "NetworkNodes": ["nn-1", "nn-2"], "AvailabilityZone": "us-west-2a"},
    ]
}
START = "import farandole\nfarandole.init()\nfarandole.barrier()\nfarandole.shutdown()\n"


def farandole(*arguments, environment=None):
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_", "SLURM"))
    }
    variables.update(OMP_NUM_THREADS="1")
    variables.update(environment or {})
    return subprocess.run([FARANDOLE, *arguments], env=variables, capture_output=True, text=True, timeout=allowed(60))


def location(environment):
    done = farandole("config", environment=environment)
    assert done.returncode == 0, done.stderr
    return re.search(r"^location: (.*)$", done.stdout, re.MULTILINE).group(1)


@pytest.fixture
def topology(tmp_path):
    """Writes a topology file and returns its path."""

    def write(text):
        path = tmp_path / "topology"
        path.write_text(text)
        return str(path)

    return write


# ---- farandole config, env and doctor --------------------------------------------------------------------------------


def test_config_prints_the_location_and_its_source(topology):
    assert location({}) == UNKNOWN
    assert location({"FARANDOLE_LOCATION": "zone-a/rack-3"}) == "zone-a/rack-3 (from FARANDOLE_LOCATION)"
    assert location(SLURM) == "s0/s4 (from SLURM_TOPOLOGY_ADDR)"
    assert location({**SLURM, "FARANDOLE_TOPOLOGY": "off"}) == "not known (FARANDOLE_TOPOLOGY=off)"


def test_config_finds_this_host_in_a_text_file(topology):
    host = os.uname().nodename
    path = topology(f"# racks\n{host} zone-a/rack-1\n* elsewhere\n")
    assert location({**SLURM, "FARANDOLE_TOPOLOGY": path}) == f"zone-a/rack-1 (from {path}, line 2)"
    path = topology("no-such-host zone-a/rack-1\n")
    assert location({"FARANDOLE_TOPOLOGY": path}).startswith(f"not known ({path} lists none of: {host}")


def test_config_finds_this_instance_in_the_answer_of_ec2(topology, tmp_path):
    path = topology(json.dumps(ANSWER))
    dmi = tmp_path / "sys" / "devices" / "virtual" / "dmi" / "id"
    dmi.mkdir(parents=True)
    (dmi / "board_asset_tag").write_text("i-0af01c0123456789a\n")
    found = f"us-west-2a/nn-1/nn-2 (from {path})"
    assert location({"FARANDOLE_TOPOLOGY": path, "FARANDOLE_SYSFS_ROOT": str(tmp_path / "sys")}) == found
    none = {"FARANDOLE_TOPOLOGY": path, "FARANDOLE_SYSFS_ROOT": str(tmp_path)}
    assert location(none).startswith("not known (")
    assert location({**none, "FARANDOLE_NODE_NAME": "i-0af01c0123456789a.ec2.internal"}) == found


def test_env_explains_the_location():
    environment = {"FARANDOLE_LOCATION": "zone-a"}
    text = farandole("env", "--explain", environment=environment).stdout
    assert "\nlocation: zone-a (from FARANDOLE_LOCATION)\n" in text, text
    explained = json.loads(farandole("env", "--explain", "--json", environment=environment).stdout)
    assert explained["location"] == "zone-a (from FARANDOLE_LOCATION)"


def test_doctor_names_a_bad_file(topology):
    path = topology("node-1 rack-1\nnode-2\n")
    done = farandole("doctor", "--json", environment={"FARANDOLE_TOPOLOGY": path})
    assert done.returncode == 78, done.stderr
    found = next(one for one in json.loads(done.stdout)["findings"] if one["what"] == "location")
    assert found["verdict"] == "bad"
    assert f"FARANDOLE_TOPOLOGY: {path}, line 2: the host has no location" in found["text"]
    done = farandole("doctor", "--json", environment={"FARANDOLE_LOCATION": "zone-a"})
    found = next(one for one in json.loads(done.stdout)["findings"] if one["what"] == "location")
    assert found["verdict"] == "good" and found["text"] == "zone-a (from FARANDOLE_LOCATION)"


# ---- Ranks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variables, text",
    [
        ({"FARANDOLE_TOPOLOGY": "node-1 rack-1\nnode-2 rack-1 rack-2\n"}, "topology, line 2: more than two words"),
        ({"FARANDOLE_TOPOLOGY": '{"Instances": [{}]}'}, "topology, instance 1: there is no InstanceId"),
        ({"FARANDOLE_LOCATION": "zone-a//rack-1"}, "FARANDOLE_LOCATION = 'zone-a//rack-1': name 2 is empty"),
    ],
)  # fmt: skip
def test_ranks_with_a_bad_location_end_at_once(variables, text, topology):
    if "FARANDOLE_TOPOLOGY" in variables:
        variables = {"FARANDOLE_TOPOLOGY": topology(variables["FARANDOLE_TOPOLOGY"])}
    began = time.monotonic()
    done = farandole("run", "-np", "2", "--", sys.executable, "-c", START, environment=variables)
    assert done.returncode != 0
    assert text in done.stderr, done.stderr
    assert time.monotonic() - began < 20


def test_rank_0_lists_the_locations_of_two_hosts():
    program = "import os\nos.environ['FARANDOLE_LOCATION'] = 'zone-a/' + os.uname().nodename\n" + START
    code, output = run_on_two_hosts(program)
    assert code == 0, output
    assert output.count("locations of hosts in the network: zone-a/host-a and zone-a/host-b") == 1, output
    assert "have no location" not in output


def test_rank_0_warns_of_a_host_without_a_location(topology):
    code, output = run_on_two_hosts(START, FARANDOLE_TOPOLOGY=topology("host-a zone-a\n"))
    assert code == 0, output
    assert output.count("1 of 2 hosts have no location in the network: host-b. They count as one group") == 1, output


# Each collective, with every root, of ranks that are on the two hosts in turn.
IN_TURN = """
import os
os.environ["FARANDOLE_LOCATION"] = "zone/" + os.uname().nodename
import farandole, numpy
farandole.init()
rank, size = farandole.rank(), farandole.size()
for count in (3, 1000, 300_000):
    mine = numpy.arange(count, dtype=numpy.int64) + rank
    total = size * numpy.arange(count, dtype=numpy.int64) + size * (size - 1) // 2
    assert (farandole.allreduce(mine, op="sum") == total).all()
    gathered = numpy.asarray(farandole.allgather(mine)).reshape(size, count)
    assert all((gathered[one] == gathered[0] + one).all() for one in range(size))
    for root in range(size):
        assert (farandole.broadcast(mine, root) == numpy.arange(count) + root).all()
print("all sums are right", flush=True)
farandole.shutdown()
"""


def test_ranks_on_two_hosts_in_turn_share_memory_and_have_the_results_of_their_ranks():
    code, output = run_on_two_hosts(
        IN_TURN, HOSTS_OF_RANKS="host-a host-b host-a host-b", FARANDOLE_LOG_LEVEL="debug", OMP_NUM_THREADS="1"
    )
    assert code == 0 and output.count("all sums are right") == 4, output
    assert "levels, from the ranks of a host outwards: 2 x 2, in the order 0,2,1,3" in output, output


def test_no_location_is_no_line_of_the_log():
    code, output = run_on_two_hosts(START)
    assert code == 0 and "location" not in output, output
