"""Scenarios on a real Ray cluster of this machine. `python ray_scenarios.py FOLDER` starts the cluster, reads names of
scenarios line by line, runs each, and prints a line of JSON for it: null, or the traceback of the failure."""

import glob
import json
import os
import pickle
import re
import runpy
import shutil
import signal
import sys
import threading
import time
import traceback

os.environ.update(
    RAY_AUTH_MODE="disabled",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_TRAIN_V2_ENABLED="1",
    RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.3",
    OMP_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
)
FOLDER = sys.argv[1] if __name__ == "__main__" else None
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[".."] * 3))
SESSIONS = (
    f"/tmp/ray-{os.getpid()}"  # Ray's folder; the test's own path is too long for sockets, which have at most 107 bytes
)
SECONDS = 60  # far longer than an error takes on an idle machine


def ranks_add_up(more=0):
    import farandole
    import numpy as np

    farandole.init()
    total = farandole.allreduce(np.array([float(farandole.rank() + more)]), name="ranks", op=farandole.SUM)
    return {
        **farandole.info(),
        "total": float(total[0]),
        "process": os.getpid(),
        "key": os.environ["FARANDOLE_JOB_KEY"],
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def places_of(results):
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    return [tuple(one[name] for name in names) for one in results]


def is_alive(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended before the file was opened, or before it was read
        return False


def assert_nothing_is_left(processes):
    """Checks that Ray's resources are free again and the workers have ended."""
    import ray

    whole = {name: ray.cluster_resources()[name] for name in ("CPU", "GPU")}

    def left():
        return {name: ray.available_resources().get(name, 0) for name in whole}

    end = time.monotonic() + SECONDS
    while time.monotonic() < end and (left() != whole or any(map(is_alive, processes))):
        time.sleep(0.05)
    assert left() == whole
    assert not {one: status_of(one) for one in processes if is_alive(one)}


def status_of(process):
    """What the kernel tells of a process and of each of its threads, for the error of a test."""
    files = [
        f"/proc/{process}/cmdline",
        *glob.glob(f"/proc/{process}/task/*/stat"),
        *glob.glob(f"/proc/{process}/task/*/wchan"),
    ]
    return {file: open(file).read() for file in files}


def assert_no_log_has(key):
    """Checks that no log of the session or of the workers contains the key."""
    logs = glob.glob(f"{SESSIONS}/session_latest/logs/**/*", recursive=True)
    assert logs
    for path in filter(os.path.isfile, logs):
        with open(path, "rb") as file:
            assert key.encode() not in file.read(), path


# ---- RayExecutor -----------------------------------------------------------------------------------------------------


def executor():
    from farandole.integrations.ray import RayExecutor

    one = RayExecutor(num_workers=2, use_gpu=True)
    one.start(Model, ["a"], {"more": 3}, {"GIVEN": "x"})
    return one


class Model:
    def __init__(self, name, more):
        self.name, self.more = name, more


def leave_the_world():
    import farandole

    farandole.shutdown()
    return os.environ["GIVEN"]


def an_executor_makes_one_world():
    import farandole
    import ray

    with executor() as one:
        results = one.run(ranks_add_up, [1], {})
        assert places_of(results) == [(0, 2, 0, 2, 0, 1), (1, 2, 1, 2, 0, 1)]
        assert [rank["total"] for rank in results] == [3.0, 3.0] and {rank["source"] for rank in results} == {
            "farandole"
        }
        assert results[0]["devices"] == results[1]["devices"] and len(set(results[0]["devices"].split(","))) == 2
        again = ray.get(one.run_remote(ranks_add_up))  # in the existing world
        assert [rank["key"] for rank in again] == [rank["key"] for rank in results] and len(results[0]["key"]) == 64
        assert one.run(leave_the_world) == ["x", "x"]
        other = one.run(ranks_add_up)
        assert other[0]["key"] == other[1]["key"] != results[0]["key"]  # a new world has a new key
        assert one.execute(lambda model: (model.name, model.more)) == [("a", 3)] * 2
        assert one.execute_single(lambda model: os.getpid()) == results[0]["process"]
        assert results[0]["key"] not in repr(one) + repr(vars(one))
        assert_no_log_has(results[0]["key"])
        assert_no_log_has(other[0]["key"])
        try:
            one.start()
            raise AssertionError("it began twice")
        except RuntimeError as error:
            assert "shutdown() first" in str(error)
    assert_nothing_is_left([rank["process"] for rank in results])
    assert not farandole.is_initialized()


def logs_what_it_does(count, middle=None):
    import farandole
    from farandole.integrations.ray import ray_logger

    farandole.init()
    for number in range(count):
        ray_logger.log({"rank": farandole.rank(), "number": number})
        if middle and number == 0:
            while not os.path.exists(middle):  # until the driver has received of it
                time.sleep(0.01)
    return farandole.rank()


def callbacks_get_all_that_rank_0_logs_while_it_runs():
    import ray

    received, counted = [], []
    with executor() as one:
        middle = os.path.join(FOLDER, "received")

        def callback(logs):
            received.append(logs)
            open(middle, "w").close()

        assert one.run(logs_what_it_does, [50, middle], callbacks=[callback, lambda logs: counted.append(1)]) == [0, 1]
        assert received == [{"rank": 0, "number": number} for number in range(50)] and len(counted) == 50
        assert one.run(logs_what_it_does, [2]) == [0, 1] and one.run(logs_what_it_does, [0], callbacks=[callback]) == [
            0,
            1,
        ]
        assert len(received) == 50  # no callback was set, so no line was sent
        assert one.execute(logs_as_a_model, callbacks=[callback]) == ["a", "a"] and received[50:] == ["a"]
        logged = threading.Event()
        assert ray.get(one.run_remote(logs_what_it_does, [1], callbacks=[lambda logs: logged.set()])) == [
            0,
            1,
        ] and logged.wait(SECONDS)
        try:
            one.run(logs_what_it_does, [1, os.path.join(FOLDER, "never")], callbacks=[lambda logs: {}["nothing"]])
            raise AssertionError("nothing was raised")
        except KeyError as error:
            assert error.args == ("nothing",)
        assert_nothing_is_left([])  # the workers would have waited for ever


def logs_as_a_model(model):
    from horovod.ray.ray_logger import log

    log(model.name)
    return model.name


def raise_on_rank_1(waiting):
    import farandole
    import numpy as np

    farandole.init()
    if farandole.rank() == 1:
        raise KeyError("weights")
    if waiting:
        farandole.allreduce(np.ones(4), name="never")


def an_exception_is_named_and_workers_that_returned_stay():
    import farandole

    with executor() as one:
        before = one.run(ranks_add_up)
        for waiting in (False, True):
            begin = time.monotonic()
            try:
                one.run(raise_on_rank_1, [waiting])
                raise AssertionError("nothing was raised")
            except KeyError as error:
                assert isinstance(error, farandole.RankError) and error.rank == 1
                assert "rank 1 of 2 on " in str(error) and f"process {before[1]['process']}" in str(error)
                assert "raise_on_rank_1" in str(error) and time.monotonic() - begin < SECONDS
            if not waiting:
                assert [rank["process"] for rank in one.run(ranks_add_up)] == [rank["process"] for rank in before]
        assert_nothing_is_left([rank["process"] for rank in before])  # rank 0 would have waited for ever


def kill_rank_1():
    import farandole
    import numpy as np

    farandole.init()
    if farandole.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    farandole.allreduce(np.ones(4), name="never")


def a_dead_worker_is_named_and_start_begins_anew():
    import farandole
    import ray

    with executor() as one:
        before = one.run(ranks_add_up)
        begin = time.monotonic()
        try:
            one.run(kill_rank_1)
            raise AssertionError("nothing was raised")
        except farandole.RankError as error:
            assert time.monotonic() - begin < SECONDS and error.rank == 1, error
            node = ray.get_runtime_context().get_node_id()[:8]
            assert f"Ray's node {node}, process {before[1]['process']})" in str(error), error
            assert "died: its worker process has died" in str(error) or "was lost" in str(error), error
        try:
            one.run(ranks_add_up)
            raise AssertionError("the dead have worked")
        except RuntimeError as error:
            assert "start() first" in str(error)
        assert_nothing_is_left([rank["process"] for rank in before])
        one.start()
        assert [rank["total"] for rank in one.run(ranks_add_up)] == [1.0, 1.0]


def without_resources_the_error_lists_free_resources():
    from farandole.integrations.ray import RayExecutor

    settings = RayExecutor.create_settings(placement_group_timeout_s=0.5)
    for count, why in (
        ({"num_workers": 2}, "no room for 2 x {'CPU': 99}"),
        ({"min_workers": 2}, "room for 0 of 2 workers"),
    ):
        try:
            RayExecutor(settings, cpus_per_worker=99, **count).start()
            raise AssertionError("there was room")
        except TimeoutError as error:
            assert f"{why} within 0.5 s" in str(error) and "free are" in str(error), error
    assert_nothing_is_left([])


def horovods_name_is_an_alias():
    from horovod.ray import RayExecutor

    one = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=2, cpus_per_worker=1)
    one.start()
    results = one.run(ranks_add_up)
    one.shutdown()
    assert [rank["total"] for rank in results] == [1.0, 1.0]


# ---- Elastic ---------------------------------------------------------------------------------------------------------


def train_through_a_loss(ends, size=2):
    """Some ranks of the first generation end at step 3; the others continue until there are `size` ranks again."""
    import farandole
    import numpy as np
    from farandole.integrations.ray import ray_logger

    farandole.init()
    end = time.monotonic() + SECONDS
    state = farandole.elastic.ObjectState(step=0, resets=0, sizes=[])

    def count():
        state.resets += 1

    @farandole.elastic.run
    def train(state):
        while state.resets == 0 or farandole.size() < size:
            total = farandole.allreduce(np.array([1.0]), name="step", op=farandole.SUM)
            assert total[0] == farandole.size() and time.monotonic() < end
            how = ends.get(farandole.rank()) if state.step == 3 and state.resets == 0 else None
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raises":
                raise KeyError("weights")
            if how == "hangs":
                time.sleep(10 * SECONDS)
            state.step += 1
            state.sizes.append(farandole.size())
            ray_logger.log(state.step)
            state.commit()

    state.register_reset_callbacks([count])
    train(state)
    return [farandole.rank(), farandole.size(), state.step, state.sizes, os.getpid(), os.environ.get("GIVEN")]


def elastic_executor(**options):
    from horovod.ray import RayExecutor

    one = RayExecutor(RayExecutor.create_settings(timeout_s=60), **options)
    one.start(extra_env_vars={"GIVEN": "x"})
    return one


def an_elastic_job_continues_without_lost_and_with_new_workers():
    received = []
    with elastic_executor(min_workers=1, max_workers=2) as one:
        for lost, how in ((0, "killed"), (1, "raises")):
            received.clear()
            results = one.run(train_through_a_loss, [{lost: how}], callbacks=[received.append])
            assert [rank[:2] for rank in results] == [[0, 2], [1, 2]] and results[0][2:4] == results[1][2:4], results
            assert (
                results[0][3][:3] == [2, 2, 2] and results[0][3][3] in (1, 2) and len(results[0][3]) == results[0][2]
            ), results
            assert received == sorted(set(received)) and received[-1] == results[0][2], received
            assert lost == 0 or received == list(range(1, results[0][2] + 1)), (
                received
            )  # a killed rank may lose its last lines
            assert results[0][4] != results[1][4] and {rank[5] for rank in results} == {"x"}
    assert_nothing_is_left([rank[4] for rank in results])


def an_elastic_worker_that_keeps_the_others_waiting_is_ended():
    with elastic_executor(min_workers=1, max_workers=3, cpus_per_worker=0.5, elastic_timeout=5) as one:
        results = one.run(train_through_a_loss, [{1: "hangs", 2: "killed"}, 3])
        assert [rank[:2] for rank in results] == [[0, 3], [1, 3], [2, 3]] and results[0][3][:3] == [3, 3, 3], results
    assert_nothing_is_left([rank[4] for rank in results])


def all_raise(before_init):
    import farandole

    if before_init:
        raise KeyError("no data")
    farandole.init()
    farandole.barrier()
    raise KeyError("no data")


def an_elastic_job_in_which_all_fail_ends_with_the_first_cause():
    import farandole

    for before_init in (True, False):
        one = elastic_executor(min_workers=2)
        try:
            one.run(all_raise, [before_init])
            raise AssertionError("nothing was raised")
        except KeyError as error:
            assert isinstance(error, farandole.RankError) and "raised KeyError: 'no data'" in str(error), error
            why = (
                "a worker failed before all had met in init()"
                if before_init
                else "no rank is left that holds the state"
            )
            assert f"the elastic job ended: {why}" in str(error) and "Ray's node" in str(error), error
        assert_nothing_is_left([])


# ---- Ray Train -------------------------------------------------------------------------------------------------------


def ranks_in(context):
    """[rank, size, local rank, local size], as Ray Train's context has them."""
    return [
        context.get_world_rank(),
        context.get_world_size(),
        context.get_local_rank(),
        context.get_local_world_size(),
    ]


def train_and_fail_twice(config):
    """The first attempt raises on rank 1, and in the second one rank 1 is killed; a third one would return."""
    import ray.train

    results = ranks_add_up()
    context = ray.train.get_context()
    mine = ranks_in(context)
    assert mine == [results[name] for name in ("rank", "size", "local_rank", "local_size")]
    attempt = len(glob.glob(f"{config['folder']}/*.{results['rank']}")) + 1
    with open(f"{config['folder']}/{attempt}.{results['rank']}", "w") as file:
        json.dump(results, file)
    ray.train.report({"total": results["total"]})
    if results["rank"] == 1 and attempt == 1:
        raise KeyError("weights")
    if results["rank"] == 1 and attempt == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    ranks_add_up()


def assert_a_raised_error_is_reported_too(node):
    """The error as Ray Train passes it on."""
    import ray.train
    from farandole.integrations.ray.train import RankFailedError, _world
    from ray.train.v2._internal.util import construct_user_exception_with_traceback

    try:
        with _world():
            raise KeyError("weights")
    except KeyError as error:
        raised = construct_user_exception_with_traceback(error)
    reported = RankFailedError(ray.train.WorkerGroupError("...", {1: raised}), 2)
    assert re.match(
        rf"rank 1 of 2 on \S+ \(127.0.0.1, Ray's node {node}, process {os.getpid()}\) raised KeyError: 'weights'",
        str(reported),
    ), reported
    assert isinstance(reported.__cause__, KeyError) and pickle.loads(pickle.dumps(reported)).text == reported.text


def ray_train_begins_again_with_a_new_key_and_then_names_the_lost_rank():
    import farandole
    import ray.train
    from farandole.integrations.ray import FarandoleConfig, FarandoleTrainer
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    folder = os.path.join(FOLDER, "attempts")
    os.mkdir(folder)
    run = RunConfig(storage_path=os.path.join(FOLDER, "results"), failure_config=FailureConfig(max_failures=1))
    one = FarandoleTrainer(
        train_and_fail_twice,
        train_loop_config={"folder": folder},
        farandole_config=FarandoleConfig(60),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run,
    )
    try:
        one.fit()
        raise AssertionError("nothing was raised")
    except farandole.RankError as error:
        assert isinstance(error, ray.train.WorkerGroupError) and isinstance(error, ray.train.TrainingFailedError)
        reported = error
    results = {name: json.load(open(os.path.join(folder, name))) for name in sorted(os.listdir(folder))}
    assert list(results) == ["1.0", "1.1", "2.0", "2.1"]
    assert reported.rank == 1 and str(reported).startswith("rank 1 of 2 on "), reported
    node = ray.get_runtime_context().get_node_id()[:8]
    assert f"Ray's node {node}, process {results['2.1']['process']}) died: its worker process has died" in str(
        reported
    ), reported
    assert_a_raised_error_is_reported_too(node)
    assert places_of(results.values()) == [(0, 2, 0, 2, 0, 1), (1, 2, 1, 2, 0, 1)] * 2
    keys = [one["key"] for one in results.values()]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    for key in set(keys):
        assert key not in repr(one.backend_config) + repr(one.backend_config.to_dict())
        assert_no_log_has(key)
    assert_nothing_is_left([one["process"] for one in results.values()])


def the_program_of_the_rayjob_trains():
    os.environ["RANKS"] = "2"
    runpy.run_path(os.path.join(ROOT, "examples", "kubernetes", "ray", "train_ray.py"))["main"]()
    results = [open(path).read() for path in glob.glob(f"{SESSIONS}/session_latest/logs/worker-*.out")]
    assert sum(text.count("ray: 2 ranks, their numbers, from 1 on, add up to 3") for text in results) == 1, results


def torch_distributed_under_ray_train():
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    run = RunConfig(storage_path=os.path.join(FOLDER, "results"))
    TorchTrainer(
        train_with_ddp,
        torch_config=TorchConfig(backend="farandole"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run,
    ).fit()


def train_with_ddp():
    import ray.train.torch
    import torch
    import torch.distributed as dist

    assert dist.get_backend() == "farandole"
    torch.manual_seed(dist.get_rank())
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    for one in weights:
        every = [torch.empty_like(one) for _ in range(dist.get_world_size())]
        dist.all_gather(every, one)
        assert torch.equal(every[0], every[1])


def a_torch_trainer_with_our_config_is_one_world():
    from farandole.integrations.ray import FarandoleConfig
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    path = os.path.join(FOLDER, "told")
    TorchTrainer(train_with_our_optimizer, train_loop_config={"path": path}, torch_config=FarandoleConfig(60),
                 scaling_config=ScalingConfig(num_workers=2),
                 run_config=RunConfig(storage_path=os.path.join(FOLDER, "results"))).fit()  # fmt: skip
    with open(path) as file:
        places, keys, processes = json.load(file)
    assert places == [[0, 2, 0, 2], [1, 2, 1, 2]] and keys[0] == keys[1] and len(keys[0]) == 64
    assert_no_log_has(keys[0])
    assert_nothing_is_left(processes)


def train_with_our_optimizer(config):
    import farandole.torch as hvd
    import ray.train.torch
    import torch
    import torch.distributed as dist

    hvd.init()
    context = ray.train.get_context()
    mine = ranks_in(context)
    assert mine == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()] and not dist.is_initialized()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(4, 1).to(ray.train.torch.get_device())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    every = hvd.allgather(torch.cat([one.detach().flatten() for one in model.parameters()])[None])
    assert torch.equal(every[0], every[1])
    reported = hvd.allgather_object((mine, os.environ["FARANDOLE_JOB_KEY"], os.getpid()))
    ray.train.report({"ranks": len(reported)})
    if hvd.rank() == 0:
        with open(config["path"], "w") as file:
            json.dump(list(zip(*reported)), file)


def begin_cluster():
    """Ray gives its processes 30 s to start, which they may exceed on a busy machine."""
    import ray

    for left in (2, 1, 0):
        try:
            return ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, object_store_memory=100 << 20,
                            log_to_driver=False, logging_level="ERROR", _temp_dir=SESSIONS)  # fmt: skip
        except Exception as error:
            if left == 0 or "timed out during startup" not in str(error):
                raise
            ray.shutdown()


def main():
    import ray

    begin_cluster()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray's own output
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        try:
            globals()[line.strip()]()
            failed = None
        except BaseException:
            failed = traceback.format_exc()
        print(json.dumps(failed), file=answers, flush=True)
    ray.shutdown()
    shutil.rmtree(SESSIONS, ignore_errors=True)


if __name__ == "__main__":
    main()
