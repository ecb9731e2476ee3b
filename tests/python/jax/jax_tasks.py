"""Programs that test_jobs.py starts: jax_tasks.py NAME."""

import json
import os
import signal
import sys
import threading

import farandole.jax as hvd
import jax
import jax.numpy as jnp
import numpy as np

FAILURES = (jax.errors.JaxRuntimeError, ValueError)  # of compiled functions
WORKER = int(os.environ.get("FARANDOLE_WORKER", "0"))


def report(**facts):
    print("SAYS " + json.dumps(dict(worker=WORKER, **facts)), flush=True)


def elastic():
    """Adds 1 for each rank and step in a compiled function; commits every other step. Worker 1 dies in step 5."""
    hvd.init()
    state = hvd.elastic.JaxState(params={"w": jnp.zeros(3)}, step=0, sizes=[])

    @jax.jit
    def add(params):
        # The rows show whether the function was compiled for this number of ranks.
        return jax.tree_util.tree_map(lambda x: x + hvd.allreduce(jnp.ones(3), op=hvd.Sum), params), hvd.allgather(
            jnp.ones((1, 1))
        )

    @hvd.elastic.run
    def go_on(state):
        report(enters=state.step, rank=hvd.rank(), size=hvd.size())
        while state.step < 12:
            if WORKER == 1 and state.step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            state.params, rows = add(state.params)
            state.step += 1
            if state.step % 2 == 0:
                assert rows.shape == (hvd.size(), 1), rows.shape
                state.sizes.append(hvd.size())
                state.commit()

    go_on(state)
    report(total=np.asarray(state.params["w"]).tolist(), sizes=state.sizes)


def loses_a_rank():
    """Rank 1 dies while rank 0's compiled function waits for it."""
    hvd.init()
    function = jax.jit(lambda x: hvd.allreduce(x, "lost", hvd.Sum))
    try:
        function(jnp.ones(3)).block_until_ready()  # rank 0 may read of the loss before it has this result
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        function(jnp.ones(3)).block_until_ready()
    except FAILURES as error:
        cause = hvd.error_of(error)
        report(kind=type(cause).__name__, culprit=cause.culprit_rank, text=str(cause), operation=cause.operation)


def traces_another_program():
    """Ranks compile different functions: each waits for a name that the other does not submit."""
    hvd.init()
    if hvd.rank() == 0:
        function = jax.jit(lambda x: hvd.allreduce(x, "only.on.zero", hvd.Sum))
    else:
        function = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    try:
        function(jnp.ones(3)).block_until_ready()
    except FAILURES as error:
        report(kind=type(hvd.error_of(error)).__name__, text=str(error))


def inits_again():
    """Compiled functions of one world run in the next one."""
    function = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    compiled = None
    for _ in range(3):
        hvd.init()
        compiled = compiled or jax.jit(lambda x: hvd.allreduce(x, "ahead", hvd.Sum)).lower(jnp.ones(2)).compile()
        results = [float(function(jnp.ones(2))[0]), float(compiled(jnp.ones(2))[0])]
        hvd.shutdown()
        report(results=results)
    try:
        compiled(jnp.ones(2)).block_until_ready()
    except FAILURES as error:
        report(after=str(error))


def leaves_a_call_in_flight():
    """The program ends while a compiled function waits for a rank that never calls it."""
    hvd.init()
    function = jax.jit(lambda x: hvd.allreduce(x @ x, "never", hvd.Sum))
    jax.jit(lambda x: hvd.allreduce(x @ x, "once", hvd.Sum))(jnp.ones((400, 400))).block_until_ready()
    if hvd.rank() == 0:
        thread = threading.Thread(target=lambda: ends(function), daemon=True)
        thread.start()
        thread.join(1)
        hvd.shutdown()
        thread.join(10)
        report(is_alive=thread.is_alive())


def ends(function):
    try:
        function(jnp.ones((400, 400))).block_until_ready()
    except FAILURES as error:
        report(kind=type(hvd.error_of(error)).__name__, text=str(error))


def joins_jax_distributed():
    """farandole beside jax.distributed: its calls are refused in compiled functions."""
    hvd.init()
    jax.distributed.initialize(sys.argv[2], hvd.size(), hvd.rank())
    try:
        jax.jit(hvd.allreduce)(jnp.ones(2))
    except hvd.HorovodInternalError as error:
        report(text=str(error))
    report(direct=float(hvd.allreduce(np.ones(2, "float32"), op=hvd.Sum)[0]))
    jax.distributed.shutdown()


def maps_over_devices():
    """shard_map over the devices of this process, beside farandole between processes."""
    from jax.sharding import Mesh, PartitionSpec

    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:
        from jax.experimental.shard_map import shard_map
    hvd.init()
    mesh = Mesh(np.array(jax.devices()), ("device",))
    count = len(jax.devices())
    spec = PartitionSpec("device")

    @jax.jit
    def function(x):
        return shard_map(lambda part: hvd.allreduce(part, "part", hvd.Sum), mesh=mesh, in_specs=spec, out_specs=spec)(x)

    x = jnp.arange(4.0 * count) * (hvd.rank() + 1)
    for _ in range(3):
        result = np.asarray(function(x))
    total = hvd.size() * (hvd.size() + 1) // 2
    report(devices=count, equal=bool((result == np.arange(4.0 * count) * total).all()))
    mapped = jax.pmap(lambda part: hvd.allreduce(part, "mapped", hvd.Sum))(x.reshape(count, 4))
    report(devices=count, equal=bool((np.asarray(mapped).reshape(-1) == np.arange(4.0 * count) * total).all()))
    # Without a mesh, one program runs on all devices too, with the whole array on each.
    sharded = jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
    result = np.asarray(jax.jit(lambda x: hvd.allreduce(x, "whole", hvd.Sum))(sharded))
    report(devices=count, equal=bool((result == np.arange(4.0 * count) * total).all()))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
