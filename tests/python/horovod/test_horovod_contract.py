"""Horovod's contract where its behaviour is not the obvious one: variables of ranks, gradients of reducescatter, sparse
gradients, the gradients that broadcast_optimizer_state leaves, and modules that programs import."""

import importlib
import json
import os
import subprocess
import sys
import threading
import time

import horovod.torch as hvd
import pytest
import torch
from expect import raises
from horovod.common import util
from horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from horovod.runner.util.threads import in_thread
from launch import FARANDOLE, checks_of, require
from limits import allowed

HOROVODRUN = os.path.join(os.path.dirname(sys.executable), "horovodrun")
NAMES = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME", "CONTROLLER"]
SHOW = "import json, os; print('SHOW', json.dumps({n: v for n, v in os.environ.items() if n.startswith('HOROVOD_')}))"


def shown(command):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=allowed(60))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.partition("SHOW ")[2] for line in done.stdout.splitlines() if "SHOW " in line]
    return sorted((json.loads(line) for line in lines), key=lambda one: one["HOROVOD_RANK"])


# ---- Variables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [[HOROVODRUN, "-np", "2"], [FARANDOLE, "run", "-np", "2", "--"]],
                         ids=["horovodrun", "farandole run"])  # fmt: skip
def test_ranks_find_horovods_variables(start):
    found = shown([*start, sys.executable, "-c", SHOW])
    host = os.uname().nodename
    expected = [[str(rank), "2", str(rank), "2", "0", "1", host, "gloo"] for rank in range(2)]
    assert [[one[f"HOROVOD_{name}"] for name in NAMES] for one in found] == expected


def test_the_variables_of_an_elastic_job_follow_init():
    show = f"import horovod.torch as hvd\nhvd.init()\n{SHOW}\nassert os.environ['HOROVOD_RANK'] == str(hvd.rank())"
    found = shown([HOROVODRUN, "-np", "2", "--min-np", "1", "--max-np", "2", sys.executable, "-c", show])
    assert [[one[f"HOROVOD_{name}"] for name in NAMES[:6]] for one in found] == [
        [str(rank), "2", str(rank), "2", "0", "1"] for rank in range(2)
    ]
    assert all(one["HOROVOD_HOSTNAME"] == os.uname().nodename and one["HOROVOD_ELASTIC"] == "1" for one in found)


def test_the_programs_own_controller_is_not_reported():
    command = [HOROVODRUN, "-np", "1", sys.executable, "-c", "import horovod.torch as hvd; hvd.init()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=allowed(60))
    assert "HOROVOD_CONTROLLER" not in done.stdout + done.stderr


# ---- Gradients -------------------------------------------------------------------------------------------------------


def check_init():
    hvd.init()
    torch.set_num_threads(1)


def check_reducescatter_gradients():
    size, rank = hvd.size(), hvd.rank()
    weights = [torch.full((2,), float(other + 1)) for other in range(size)]
    gathered = torch.cat(weights)
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        tensor = torch.zeros(2 * size, requires_grad=True)
        (hvd.reducescatter(tensor, op=op) * weights[rank]).sum().backward()
        assert torch.equal(tensor.grad, gathered * factor), (op, tensor.grad)
        one, two = torch.zeros(2 * size, requires_grad=True), torch.zeros(2 * size, requires_grad=True)
        outputs = hvd.grouped_reducescatter([one, two], op=op)
        ((outputs[0] + 3 * outputs[1]) * weights[rank]).sum().backward()
        assert torch.equal(one.grad, gathered * factor) and torch.equal(two.grad, gathered * factor * 3)


def check_sparse_as_dense_gives_sparse_gradients():
    embedding = torch.nn.Embedding(6, 2, sparse=True)
    with torch.no_grad():
        embedding.weight.fill_(1)
    plain = torch.optim.SparseAdam(embedding.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(plain, embedding.named_parameters(), sparse_as_dense=True)
    for _ in range(3):
        optimizer.zero_grad()
        embedding(torch.tensor([hvd.rank(), 4])).sum().backward()
        optimizer.synchronize()
        gradient = embedding.weight.grad
        assert gradient.is_sparse
        expected = torch.zeros(6, 2)
        expected[: hvd.size()] = 1 / hvd.size()
        expected[4] = 1
        assert torch.equal(gradient.to_dense(), expected)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert torch.equal(embedding.weight[5], torch.ones(2)), "a row without a gradient is not changed"
    assert not torch.equal(embedding.weight[4], torch.ones(2))
    assert all(torch.equal(embedding.weight, other) for other in hvd.allgather_object(embedding.weight.detach()))


def check_zero_gradients_after_broadcast_optimizer_state():
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad = False
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    before = model.weight.detach().clone()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert torch.equal(model.weight.grad, torch.zeros(2, 2)) and model.bias.grad is None
    assert torch.equal(model.weight, before), "no step is made"
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert model.weight.grad is None, "an optimizer with state leaves gradients alone"


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [2, 3])
def test_gradients(check, size):
    require(sys.modules[__name__], size, check)


# ---- Modules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module, names",
    [
        ("horovod.data", "AsyncDataLoaderMixin BaseDataLoader"),
        ("horovod.data.data_loader_base", "AsyncDataLoaderMixin BaseDataLoader"),
        ("horovod.ray", "RayExecutor ElasticRayExecutor ray_logger"),
        ("horovod.ray.elastic", "ElasticRayExecutor"),
        ("horovod.runner.launch", "run_commandline"),
        ("horovod.runner.util.threads", "in_thread"),
        ("horovod.common.util", "env extension_available gpu_available check_extension split_list"),
    ],
)
def test_modules_that_programs_import(module, names):
    loaded = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(loaded, name)] == []


@pytest.mark.parametrize("module", ["horovod.mxnet"])
def test_a_module_that_is_not_offered_says_so(module):
    error = raises(ImportError, f"does not offer {module}: ", importlib.import_module, module)
    assert error.name == module and "\n" not in str(error)


def test_spark_is_imported_when_it_is_used(monkeypatch):
    """The tests of tests/spark run the functions on a cluster."""
    import horovod.spark
    import horovod.spark.common.store

    monkeypatch.setitem(sys.modules, "pyspark", None)
    raises(ImportError, "farandole.spark needs PySpark", horovod.spark.run, print)
    raises(ImportError, "farandole.spark needs PySpark", horovod.spark.run_elastic, print)
    monkeypatch.setitem(sys.modules, "pyspark.ml", None)
    raises(ImportError, "an estimator needs PySpark", importlib.import_module, "horovod.spark.torch")
    raises(ImportError, "an estimator needs PySpark", importlib.import_module, "horovod.spark.keras")


def test_helpers():
    with util.env(HOROVOD_TEST_A="1", PATH=None):
        assert os.environ["HOROVOD_TEST_A"] == "1" and "PATH" not in os.environ
    assert "HOROVOD_TEST_A" not in os.environ and os.environ["PATH"]
    assert util.extension_available("torch") and not util.extension_available("mxnet")
    assert util.gpu_available("torch") == torch.cuda.is_available() and not util.gpu_available("tensorflow")
    raises(ImportError, "horovod.mxnet", util.check_extension, "horovod.mxnet", "HOROVOD_WITH_MXNET", "")
    ran = threading.Event()
    thread = in_thread(lambda event: event.set(), (ran,))
    thread.join(10)
    assert ran.is_set() and thread.daemon
    in_thread(lambda: 1 / 0, silent=True).join(10)
    raises(ValueError, "tuple", in_thread, print, "x")


class Loader(BaseDataLoader):
    """Batches 0 to count - 1; the batch `fails_at` raises."""

    def __init__(self, count, fails_at=None):
        self.count, self.fails_at, self.made = count, fails_at, []

    def __len__(self):
        return self.count

    def _iterate(self):
        for batch in range(self.count):
            if batch == self.fails_at:
                raise KeyError(batch)
            self.made.append(batch)
            yield batch

    def _process_batch(self, batch):
        return 10 * batch


class AsyncLoader(AsyncDataLoaderMixin, Loader):
    pass


@pytest.mark.parametrize("ahead", [0, 1, 64])
def test_an_async_loader_gives_the_same_batches(ahead):
    loader = AsyncLoader(async_loader_queue_size=ahead, count=20)
    for _ in range(2):
        assert list(loader) == list(Loader(20)) == [10 * batch for batch in range(20)]
    loader.close_async_loader()
    failing = AsyncLoader(async_loader_queue_size=ahead, count=20, fails_at=3)
    seen = []
    with pytest.raises(KeyError):
        seen.extend(failing) or [seen.append(batch) for batch in failing]
    raises(ValueError, "async_loader_queue_size=-1", AsyncLoader, -1, count=1)


def test_an_async_loader_runs_ahead_and_ends_its_thread():
    loader = AsyncLoader(async_loader_queue_size=2, count=100)
    batches = iter(loader)
    assert next(batches) == 0
    end = time.monotonic() + allowed(10)
    while len(loader.made) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    assert 3 <= len(loader.made) <= 4, "the queue holds two batches, and the thread has one or two more"
    loader.close_async_loader()
    assert not [one for one in threading.enumerate() if one.name == "AsyncDataLoader"]
    assert len(list(loader)) == 100


@pytest.mark.parametrize("words", ["--help", "--version", "--check-build"])
@pytest.mark.parametrize("lost", [">/dev/full", ">&-"])
def test_horovodrun_reports_a_lost_output(words, lost):
    command = ["sh", "-c", f'exec "$@" {lost}', "sh", sys.executable, "-m", "horovod.runner.launch", words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 74 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("horovodrun: standard output "), done.stderr
