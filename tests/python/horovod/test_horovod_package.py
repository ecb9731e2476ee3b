"""The package `horovod`: its paths, signatures and versions are those of the contract, and scripts run as they are."""

import importlib
import inspect
import os
import subprocess
import sys

import farandole
import horovod
import horovod.torch as hvd
import pytest
from launch import FARANDOLE, ROOT
from mpi_launch import run_launcher

SCRIPT = os.path.join(ROOT, "examples", "horovod_digits.py")

PATHS = {
    "horovod": "run farandole",
    "horovod.version": "__version__",
    "horovod.runner": "run",
    "horovod.elastic": "run State ObjectState",
    "horovod.common.elastic": "run State ObjectState",
    "horovod.torch.elastic": "run TorchState ElasticSampler",
    "horovod.torch.elastic.state": "TorchState get_handler_registry set_handler_registry",
    "horovod.torch.elastic.sampler": "ElasticSampler",
    "horovod.common.basics": "HorovodBasics",
    "horovod.common.exceptions": "HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError",
    "horovod.common.process_sets": "ProcessSet global_process_set add_process_set remove_process_set",
    "horovod.common.util": "num_rank_is_power_2 split_list is_iterable",
    "horovod.torch.mpi_ops": "allreduce allreduce_async_ grouped_allreduce allgather broadcast_ alltoall "
    "reducescatter join barrier poll synchronize rank size local_rank is_homogeneous Average Sum Adasum init "
    "HorovodInternalError",
    "horovod.torch.compression": "Compression Compressor",
    "horovod.torch.functions": "broadcast_parameters broadcast_optimizer_state broadcast_object allgather_object",
    "horovod.torch.optimizer": "DistributedOptimizer",
    "horovod.torch.sync_batch_norm": "SyncBatchNorm",
}

ALLREDUCE = "average=None name=None op=None prescale_factor=1.0 postscale_factor=1.0 process_set=gps"
WITH_COMPRESSION = (
    "average=None name=None compression=none op=None prescale_factor=1.0 postscale_factor=1.0 process_set=gps"
)
SCATTER = "name=None compression=none op=0 process_set=gps prescale_factor=1.0 postscale_factor=1.0"
SCATTER_ASYNC = "name=None op=0 process_set=gps prescale_factor=1.0 postscale_factor=1.0"
SIGNATURES = {
    "init": "comm=None process_sets=None",
    "shutdown": "",
    "is_initialized": "",
    "rank": "",
    "size": "",
    "local_rank": "",
    "local_size": "",
    "cross_rank": "",
    "cross_size": "",
    "mpi_threads_supported": "",
    "start_timeline": "file_path mark_cycles=False",
    "stop_timeline": "",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "allreduce": f"tensor {WITH_COMPRESSION}",
    "allreduce_": f"tensor {ALLREDUCE}",
    "allreduce_async": f"tensor {ALLREDUCE}",
    "allreduce_async_": f"tensor {ALLREDUCE}",
    "grouped_allreduce": f"tensors {WITH_COMPRESSION}",
    "grouped_allreduce_": f"tensors {ALLREDUCE}",
    "grouped_allreduce_async": f"tensors {ALLREDUCE}",
    "grouped_allreduce_async_": f"tensors {ALLREDUCE}",
    "sparse_allreduce_async": "tensor name op process_set=gps",
    "allgather": "tensor name=None process_set=gps",
    "allgather_async": "tensor name=None process_set=gps",
    "grouped_allgather": "tensors name=None process_set=gps",
    "grouped_allgather_async": "tensors name=None process_set=gps",
    "broadcast": "tensor root_rank name=None process_set=gps",
    "broadcast_": "tensor root_rank name=None process_set=gps",
    "broadcast_async": "tensor root_rank name=None process_set=gps",
    "broadcast_async_": "tensor root_rank name=None process_set=gps",
    "alltoall": "tensor splits=None name=None process_set=gps",
    "alltoall_async": "tensor splits=None name=None process_set=gps",
    "reducescatter": f"tensor {SCATTER}",
    "reducescatter_async": f"tensor {SCATTER_ASYNC}",
    "grouped_reducescatter": f"tensors {SCATTER}",
    "grouped_reducescatter_async": f"tensors {SCATTER_ASYNC}",
    "poll": "handle",
    "synchronize": "handle",
    "join": "device=-1",
    "barrier": "process_set=gps",
    "broadcast_parameters": "params root_rank",
    "broadcast_optimizer_state": "optimizer root_rank model=None",
    "broadcast_object": "obj root_rank=0 name=None process_set=gps",
    "allgather_object": "obj name=None",
    "DistributedOptimizer": "optimizer named_parameters=None compression=none backward_passes_per_step=1 op=0 "
    "gradient_predivide_factor=1.0 num_groups=0 groups=None sparse_as_dense=False process_set=gps",
}


@pytest.mark.parametrize("path", PATHS)
def test_every_public_path_exists(path):
    module = importlib.import_module(path)
    for name in PATHS[path].split():
        assert hasattr(module, name), f"{path} has no {name}"


def test_versions():
    assert horovod.__version__ == "0.28.1"
    assert horovod.farandole.__version__ == farandole.__version__


def _words(function):
    names = {hvd.global_process_set: "gps", hvd.Compression.none: "none"}

    def default(value):
        return names[value] if value in (hvd.global_process_set, hvd.Compression.none) else repr(value)

    parameters = [one for one in inspect.signature(function).parameters.values() if one.kind is not one.KEYWORD_ONLY]
    return " ".join(p.name if p.default is p.empty else f"{p.name}={default(p.default)}" for p in parameters)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_those_of_the_contract(name):
    printed = _words(getattr(hvd, name))
    expected = SIGNATURES[name]
    # A further argument at the end, with a default, breaks no caller.
    assert printed == expected or printed.startswith(expected + " ") and "=" in printed[len(expected) :].split()[0], (
        printed
    )


def test_a_framework_loads_the_modules_of_common():
    names = ("basics", "elastic", "exceptions", "process_sets", "util")
    program = "import horovod.torch; " + "; ".join(f"print(horovod.common.{name}.__name__)" for name in names)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"horovod.common.{name}" for name in names]


def test_classes_and_constants():
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    assert issubclass(horovod.common.exceptions.HostsUpdatedInterrupt, RuntimeError)
    assert horovod.common.exceptions.HostsUpdatedInterrupt(True).skip_sync
    assert issubclass(horovod.common.exceptions.HorovodVersionMismatchError, ImportError)
    basics = horovod.common.basics.HorovodBasics(__file__, "mpi_lib")
    assert not basics.is_initialized() and basics.nccl_built() == 0 and not basics.mpi_enabled()
    assert horovod.common.util.split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]
    assert [n for n in range(9) if horovod.common.util.num_rank_is_power_2(n)] == [1, 2, 4, 8]
    expected = "num_features eps=1e-05 momentum=0.1 affine=True track_running_stats=True"
    assert " ".join(_words(hvd.SyncBatchNorm).split()[:5]) == expected


# ---- Beside the other one
# ------------------------------------------------------------------------------------------------


def test_import_fails_if_horovod_is_installed(tmp_path):
    other = tmp_path / "horovod-0.28.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    variables = dict(os.environ, PYTHONPATH=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", "import horovod.torch"], env=variables, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ImportError" in done.stderr and "Horovod 0.28.1" in done.stderr and str(tmp_path) in done.stderr
    assert "pip uninstall -y horovod farandole-horovod" in done.stderr


# ---- A script as it is
# ---------------------------------------------------------------------------------------------------


def _trains(command, epochs, *options):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    variables.update(OMP_NUM_THREADS="1", HOROVOD_START_TIMEOUT="100")  # importing torch may take long
    command = [*command, sys.executable, SCRIPT, "--epochs", str(epochs), *options]
    code, output = run_launcher(command, variables, deadline_s=120)
    assert code == 0, output
    (last,) = [line for line in output.splitlines() if "final accuracy" in line]
    assert last.endswith("on 2 ranks"), last
    return float(last.split()[last.split().index("accuracy") + 1])


def test_a_script_runs_under_farandole_run():
    assert _trains([FARANDOLE, "run", "-np", "2"], 6) > 0.9


def test_a_script_runs_under_horovodrun():
    horovodrun = os.path.join(os.path.dirname(sys.executable), "horovodrun")
    assert _trains([horovodrun, "-np", "2", "-H", "localhost:2"], 1) > 0.2


def test_a_script_runs_with_adasum_and_small_gradients():
    assert _trains([FARANDOLE, "run", "-np", "2"], 2, "--use-adasum", "--fp16-allreduce", "--workers", "1") > 0.5


def test_a_script_runs_under_torchrun():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    assert _trains(launcher, 1) > 0.2


def test_a_script_runs_under_mpirun():
    launcher = ["mpirun.openmpi", "-np", "2", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    assert _trains(launcher, 1) > 0.2
