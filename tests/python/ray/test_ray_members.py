"""The Ray integration without Ray: ranks by node, shared devices of a node, first causes, and the error without Ray."""

import pickle
import random
import subprocess
import sys

import farandole
import pytest
from farandole import rendezvous
from farandole.integrations.ranks.failures import explain, first_cause
from farandole.integrations.ranks.worlds import Secret, choose_rendezvous
from farandole.integrations.ray import RayExecutor, by_node, number, visible_devices
from farandole.integrations.ray.failures import READER, how_it_died, place_in

NAMES = ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"]


def members(nodes):
    return [tuple(getattr(member, name) for name in NAMES) for member in number(nodes)]


def test_numbers_of_equal_nodes():
    assert members("aabb") == [(0, 4, 0, 2, 0, 2), (1, 4, 1, 2, 0, 2), (2, 4, 0, 2, 1, 2), (3, 4, 1, 2, 1, 2)]


def test_ragged_nodes_count_only_those_that_have_the_local_rank():
    assert members("abbbcc") == [
        (0, 6, 0, 1, 0, 3),
        (1, 6, 0, 3, 1, 3),
        (2, 6, 1, 3, 0, 2),
        (3, 6, 2, 3, 0, 1),
        (4, 6, 0, 2, 2, 3),
        (5, 6, 1, 2, 1, 2),
    ]


def test_numbers_of_interleaved_nodes():
    assert members("abab") == [(0, 4, 0, 2, 0, 2), (1, 4, 0, 2, 1, 2), (2, 4, 1, 2, 0, 2), (3, 4, 1, 2, 1, 2)]


@pytest.mark.parametrize("seed", range(20))
def test_local_and_cross_ranks_are_unique(seed):
    dice = random.Random(seed)
    nodes = [dice.choice("abcde") for _ in range(dice.randrange(1, 30))]
    nodes = [nodes[one] for one in by_node(nodes)]
    assert [node for index, node in enumerate(nodes) if index == 0 or nodes[index - 1] != node] == list(
        dict.fromkeys(nodes)
    )
    made = number(nodes)
    for node in set(nodes):
        mine = [member for member, one in zip(made, nodes) if one == node]
        assert [member.local_rank for member in mine] == list(range(len(mine))) and {
            member.local_size for member in mine
        } == {len(mine)}
    for local in {member.local_rank for member in made}:
        across = [member for member in made if member.local_rank == local]
        assert [member.cross_rank for member in across] == list(range(len(across)))
        assert {member.cross_size for member in across} == {len(across)}


def test_workers_are_ordered_by_node_and_then_by_device():
    assert by_node("abab") == [0, 2, 1, 3]
    assert by_node("baab") == [0, 3, 1, 2]
    assert by_node("abab", [["10"], [], ["2"], []]) == [2, 0, 1, 3]
    assert by_node("aa", [["GPU-f"], ["GPU-a"]]) == [1, 0]


def test_ranks_of_a_node_see_all_their_devices_with_their_own_at_their_local_rank():
    assert visible_devices("aabb", [["2"], ["3"], ["0"], ["1"]]) == [["2", "3"], ["2", "3"], ["0", "1"], ["0", "1"]]
    assert visible_devices("aa", [["10", "2"], ["3", "1"]]) == [["2", "10", "1", "3"]] * 2
    assert visible_devices("aa", [["0"], ["0"]]) == [["0"], ["0"]]  # halves of one
    assert visible_devices("ab", [[], []]) == [[], []]


# ---- Meeting ---------------------------------------------------------------------------------------------------------


def test_one_host_uses_a_unix_socket_and_several_use_rank_0s_address(monkeypatch):
    monkeypatch.delenv("FARANDOLE_PORT_BASE", raising=False)
    one = choose_rendezvous(["x", "x"], "10.0.0.7")
    assert one.startswith("unix:@farandole-") and choose_rendezvous(["x", "x"], "10.0.0.7") != one
    assert choose_rendezvous(["x", "y"], "10.0.0.7").startswith("tcp://10.0.0.7:")
    assert choose_rendezvous(["x", "y"], "fd00::7").startswith("tcp://[fd00::7]:")
    assert rendezvous.host_identity() == rendezvous.host_identity()


def test_the_rendezvous_uses_the_open_ports(monkeypatch):
    monkeypatch.setenv("FARANDOLE_PORT_BASE", "29500")
    assert choose_rendezvous(["x", "y"], "10.0.0.7") == "tcp://10.0.0.7:29500-29563"
    monkeypatch.setenv("FARANDOLE_PORT_COUNT", "8")
    assert choose_rendezvous(["x", "y"], "10.0.0.7") == "tcp://10.0.0.7:29500-29507"


def test_the_key_is_in_no_repr_and_survives_pickling():
    key = Secret("0123456789abcdef")
    assert "0123" not in f"{key} {key!r} {[key]} {RuntimeError((key, 'place'))}"
    assert pickle.loads(pickle.dumps(key)).text == key.text


# ---- Failures --------------------------------------------------------------------------------------------------------


class RayActorError(Exception):
    """A class with the name of Ray's."""


class RayTaskError(Exception):
    """As Ray's: its cause is the exception of the worker."""

    def __init__(self, cause):
        super().__init__("the traceback there")
        self.cause = cause


DEATH = RayActorError(
    "The actor died.\n\tpid: 7\n\tip: 10.0.0.7\nThe actor is dead because its worker process has "
    "died. Worker "
    "exit type: SYSTEM_ERROR Worker exit detail: End of file. Some common causes include: (1) the moon"
)
LOST = farandole.PeerLostError("rank 1 on b was lost", 1, "b")


def explained(failures, size=3):
    return explain(failures, lambda rank: f"node-{rank}", size, READER)


def test_a_dead_worker_is_the_cause_in_any_order_of_arrival():
    failures = {0: RayTaskError(LOST), 2: RayTaskError(ValueError("x")), 1: DEATH}
    assert first_cause(failures, READER) == 1
    error = explained(failures)
    assert str(error) == ("rank 1 of 3 on node-1 died: its worker process has died. Worker exit type: SYSTEM_ERROR "
                          "Worker exit "
                          "detail: End of file; rank 0 reports: rank 1 on b was lost")  # fmt: skip
    assert error.rank == 1 and isinstance(error, RayActorError) and isinstance(error, farandole.RankError)
    train = "Worker(hostname='train-1', node_id='0123456789ab', node_ip='10.0.0.7', pid=7)"
    assert place_in(ValueError(train)) == "train-1 (10.0.0.7, Ray's node 01234567, process 7)"
    assert (
        place_in(ValueError("x\nin a-1 (10.0.0.7, Ray's node 01234567, process 7)\n"))
        == "a-1 (10.0.0.7, Ray's node 01234567, process 7)"
    )
    assert place_in(DEATH) == "10.0.0.7 (process 7)" and "does not name" in place_in(ValueError("x"))


def test_a_worker_that_raised_precedes_those_that_report_it():
    error = explained({0: RayTaskError(LOST), 1: RayTaskError(KeyError("weights"))})
    assert error.rank == 1 and isinstance(error, KeyError) and isinstance(error.__cause__, KeyError)
    assert str(error).startswith("rank 1 of 3 on node-1 raised KeyError: 'weights'\n\nthe traceback there")


def test_a_rank_that_others_report_is_the_cause_without_its_own_error():
    error = explained({2: RayTaskError(farandole.errors.as_horovod(LOST)), 0: RayTaskError(LOST)})
    assert error.rank == 1 and isinstance(error, farandole.PeerLostError)
    assert str(error) == "rank 1 of 3 on node-1 was lost; rank 2 reports: rank 1 on b was lost"


def test_a_shutdown_of_others_is_not_the_cause():
    assert (
        first_cause({0: RayTaskError(farandole.ShutDownError("gone")), 2: RayTaskError(OSError("disk"))}, READER) == 2
    )
    assert first_cause({0: RayTaskError(farandole.ShutDownError("gone"))}, READER) == 0


def test_an_unexplained_death_is_named_by_its_class():
    assert how_it_died(RayActorError()) == "RayActorError"
    assert explained({0: RayActorError("gone.")}, None).text == "rank 0 on node-0 died: gone"


# ---- Asking for it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, why",
    [
        ({}, "give one of num_workers and num_hosts"),
        ({"num_workers": 2, "num_hosts": 2}, "give one of num_workers and num_hosts"),
        ({"num_workers": 2, "gpus_per_worker": 1}, "needs use_gpu=True"),
        ({"min_workers": 1, "num_workers": 2}, "take the place of num_workers"),
        ({"min_workers": 3, "max_workers": 2}, "leave no number between them"),
        ({"min_workers": 0}, "leave no number between them"),
    ],
)
def test_invalid_options_are_rejected_at_once(wrong, why):
    with pytest.raises(ValueError, match=why):
        RayExecutor(**wrong)


def test_run_before_start_raises():
    executor = RayExecutor(num_hosts=2, num_workers_per_host=3)
    assert executor.num_workers == 6
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        executor.run(print)
    executor.shutdown()


WITHOUT = """
import sys
sys.modules["ray"] = None
import farandole.integrations.ray
try:
    {use}
except ImportError as error:
    print(error)
print("torch" in sys.modules, "numpy" in sys.modules)
"""


@pytest.mark.parametrize(
    "use, package",
    [
        ("farandole.integrations.ray.FarandoleTrainer", "pip install 'ray[train]>=2.51'"),
        ("from farandole.integrations.ray import FarandoleConfig", "pip install 'ray[train]>=2.51'"),
        ("farandole.integrations.ray.RayExecutor(num_workers=1).start()", "pip install 'ray'"),
        ("from horovod.ray import RayExecutor; RayExecutor(num_workers=1).start()", "pip install 'ray'"),
    ],
)
def test_without_ray_the_error_names_the_package(use, package):
    done = subprocess.run([sys.executable, "-c", WITHOUT.format(use=use)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed, imported = done.stdout.strip().splitlines()
    assert printed.startswith("farandole.integrations.ray.") and "needs Ray" in printed and printed.endswith(package)
    assert imported == "False False"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        farandole.integrations.ray.Nonsense  # noqa: B018


def test_the_former_name_of_member_is_the_same_class():
    assert farandole.integrations.ray.Seat is farandole.integrations.ray.Member
