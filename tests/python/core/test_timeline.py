"""The timeline of programs written for Horovod, parsed as JSON and checked bar by bar."""

import collections
import json
import os
import re
import signal
import sys
import time

import farandole
import farandole.torch as fdl_torch
import horovod.torch as hvd
import pytest
import torch
import torch.nn as nn
from launch import Launched, launch
from limits import allowed


class Timeline:
    """A timeline file, parsed as JSON. The constructor checks the properties of all timelines."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.events = json.load(file)
        self.names = {}
        self.tracks = collections.defaultdict(list)
        for event in self.events:
            if event["ph"] == "M":
                if event["name"] == "process_name":
                    self.names[event["pid"]] = event["args"]["name"]
            elif event["ph"] != "i":
                self.tracks[event["pid"], event["tid"]].append(event)
        assert len(set(self.names.values())) == len(self.names)
        for track in self.tracks.values():
            self._check(track)

    def _check(self, track):
        open_bars, last = [], 0
        for event in track:
            assert event["ts"] >= last, (self.names[event["pid"]], event)
            last = event["ts"]
            if event["ph"] == "B":
                open_bars.append(event["name"])
            elif event["ph"] == "E":
                assert open_bars, event
                open_bars.pop()
            else:
                assert event["ph"] == "X" and re.fullmatch(r"\d+", event["name"]) and event["dur"] == 0, event
                assert open_bars and open_bars[-1].startswith("NEGOTIATE_"), event
        assert not open_bars, open_bars

    def bars(self, tensor):
        """The names of the bars and ticks of a tensor, in their order."""
        (pid,) = [pid for pid, name in self.names.items() if name == tensor]
        return [event["name"] for event in self.tracks[pid, pid] if event["ph"] in "BX"]

    def marks(self, name):
        return [event for event in self.events if event["ph"] == "i" and event["name"] == name]

    def all_names(self):
        return {event["name"] for event in self.events if event["ph"] == "B"}

    def summary(self):
        """The bars and ticks of each tensor in their order, and how often each mark occurs."""
        marks = collections.Counter(event["name"] for event in self.events if event["ph"] == "i")
        return {**{name: self.bars(name) for name in self.names.values()}, **marks}


# ---- Written by a training run
# ------------------------------------------------------------------------------------------


def trains():
    folder, module = sys.argv[4], {"horovod": hvd, "farandole": fdl_torch}[sys.argv[5]]
    module.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = module.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())

    def step():
        optimizer.zero_grad()
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()

    module.start_timeline(os.path.join(folder, "t.json"), mark_cycles=True)
    module.barrier()  # else others may be ready before it begins
    module.broadcast_parameters(model.state_dict(), root_rank=0)
    module.allgather(torch.ones(module.rank() + 1), name="rows")
    module.reducescatter(torch.ones(4), name="share", op=module.Sum)
    module.alltoall(torch.arange(4), name="exchange")
    for _ in range(20):
        step()
    module.allreduce(torch.ones(3), name="loss")
    module.stop_timeline()
    module.stop_timeline()  # harmless
    module.barrier()  # else rank 0 may have received messages of the next step
    step()
    module.start_timeline(os.path.join(folder, "again.json"))
    module.allreduce(torch.ones(3), name="second")
    with pytest.raises(ValueError, match="one is being written already"):
        module.start_timeline(os.path.join(folder, "third.json"))
    module.shutdown()  # completes it


@pytest.mark.parametrize("module", ["horovod", "farandole"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_timeline_has_horovods_states(tmp_path, module, transport):
    launch(2, trains, environment={"FARANDOLE_TRANSPORT": transport}, arguments=[str(tmp_path), module])
    assert sorted(os.listdir(tmp_path)) == ["again.json", "t.json"]  # rank 0 alone writes
    timeline = Timeline(tmp_path / "t.json")
    kinds = {"allgather.rows": "ALLGATHER", "reducescatter.share": "REDUCESCATTER", "alltoall.exchange": "ALLTOALL",
             "allreduce.loss": "ALLREDUCE"}  # fmt: skip
    for tensor, kind in kinds.items():
        bars = timeline.bars(tensor)
        assert bars[0] == f"NEGOTIATE_{kind}" and set(bars[1:3]) == {"0", "1"}, bars
        assert bars[3:5] == [kind, "QUEUE"] and len(bars) == 6, bars
        assert bars[5].startswith(transport.upper() + "_") and bars[5].endswith("_" + kind), bars
    gradients = [name for name in timeline.names.values() if "0.weight" in name and "allreduce" in name.lower()]
    (gradient,) = gradients
    bars = timeline.bars(gradient)
    assert bars.count("NEGOTIATE_ALLREDUCE") == bars.count("ALLREDUCE") == 20, bars
    # Without shared memory, ranks do not report readiness after the order is locked.
    ready = bars.count("0")
    assert ready == bars.count("1") and (ready == 20 if transport == "shm" else 0 < ready < 20), bars
    assert timeline.marks("CYCLE_START")
    assert "LOCKED_ORDER" in timeline.all_names(), str(timeline.summary())
    ends = [event["args"] for event in timeline.events if event["ph"] == "E" and "dtype" in event.get("args", {})]
    assert {"dtype": "float32", "shape": "[3]"} in ends and {"dtype": "int64", "shape": "[4]"} in ends
    again = Timeline(tmp_path / "again.json")
    assert "allreduce.second" in again.names.values() and "allreduce.loss" not in again.names.values()
    assert not again.marks("CYCLE_START")


def trains_beside_a_late_rank():
    path, late = sys.argv[4], int(sys.argv[5])
    fdl_torch.init()
    model = nn.Linear(16, 8)
    optimizer = fdl_torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    fdl_torch.start_timeline(path)
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 16)).sum()
        if fdl_torch.rank() == late:
            time.sleep(0.01)  # its requests then come together, and one plan decides all of a step
        loss.backward()
        optimizer.step()
    fdl_torch.shutdown()


@pytest.mark.parametrize("late", [0, 1])
def test_the_order_is_locked_beside_a_late_rank(tmp_path, late):
    launch(2, trains_beside_a_late_rank, arguments=[str(tmp_path / "t.json"), str(late)])
    timeline = Timeline(tmp_path / "t.json")
    assert "LOCKED_ORDER" in timeline.all_names(), str(timeline.summary())


def does_little():
    hvd.init()
    for _ in range(10):
        hvd.allreduce(torch.ones(3), name="loss")


def test_horovods_variables_start_a_timeline(tmp_path):
    launch(
        2, does_little, environment={"HOROVOD_TIMELINE": str(tmp_path / "h.json"), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    )
    timeline = Timeline(tmp_path / "h.json")
    assert timeline.bars("allreduce.loss").count("ALLREDUCE") == 10 and timeline.marks("CYCLE_START")
    launch(2, does_little, environment={"FARANDOLE_TIMELINE": str(tmp_path / "rank-%r.json")})
    for rank in range(2):
        assert Timeline(tmp_path / f"rank-{rank}.json").bars("allreduce.loss").count("ALLREDUCE") == 10
    launch(2, does_little, environment={"HOROVOD_TIMELINE": "DYNAMIC"})
    assert not os.path.exists("DYNAMIC")


def test_an_impossible_file_is_reported_and_the_job_continues(tmp_path):
    outputs = launch(2, does_little, environment={"HOROVOD_TIMELINE": str(tmp_path / "nowhere" / "h.json")})
    assert "No such file or directory" in outputs[0] and "the job goes on without one" in outputs[0]
    assert "timeline" not in outputs[1]


def asks_wrongly():
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.start_timeline("x.json")
    hvd.init()
    if hvd.rank() == 0:  # only the rank that writes gets the error
        with pytest.raises(
            ValueError, match="cannot open '/nowhere/x.json': No such file or directory; give a file"
        ) as caught:
            hvd.start_timeline("/nowhere/x.json")
        assert isinstance(caught.value, farandole.ResourceError)
    with pytest.raises(ValueError, match="is empty"):
        hvd.start_timeline("")


def test_wrong_calls_are_rejected():
    launch(2, asks_wrongly)


# ---- Bad days
# -----------------------------------------------------------------------------------------------------------


def works_until_killed():
    hvd.init()
    hvd.start_timeline(sys.argv[4])
    while True:
        hvd.allreduce(torch.ones(1000), name="loss")


def test_the_file_of_a_killed_rank_is_valid_json(tmp_path):
    path = tmp_path / "t.json"
    with Launched(2, works_until_killed.__module__, [works_until_killed.__name__], arguments=[str(path)]) as job:
        end = time.monotonic() + allowed(60)
        while not (path.exists() and path.stat().st_size > 100_000) and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(job.ranks[0].process.pid, signal.SIGKILL)
        job.ranks[0].process.wait()
    text = path.read_text()
    assert len(text) > 100_000
    try:
        events = json.loads(text)
    except json.JSONDecodeError:  # killed during a write: viewers accept a truncated file
        events = json.loads(text[: text.rindex("\n{")].rstrip().rstrip(",") + "\n]")
    assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE"} <= {event.get("name") for event in events}


def forks():
    hvd.init()
    hvd.start_timeline(sys.argv[4])
    hvd.allreduce(torch.ones(3), name="before")
    child = os.fork()
    if child == 0:
        with pytest.raises(farandole.NotInitializedError):
            farandole.world._state.native.stop_timeline()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    hvd.allreduce(torch.ones(3), name="after")
    hvd.stop_timeline()


def test_a_forked_child_writes_nothing(tmp_path):
    launch(2, forks, arguments=[str(tmp_path / "t.json")], fresh=True)
    timeline = Timeline(tmp_path / "t.json")
    assert (
        timeline.bars("allreduce.before").count("ALLREDUCE") == timeline.bars("allreduce.after").count("ALLREDUCE") == 1
    )
