"""farandole.tensorflow.elastic: a rank dies inside of a tf.function, and the job goes on from the last commit."""

import json
import os
import subprocess
import sys

import farandole.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from launch import FARANDOLE, launch
from limits import allowed
from test_tensorflow import same

PROGRAM = """
import json, os
import farandole.tensorflow as hvd
import tensorflow as tf

worker = int(os.environ["FARANDOLE_WORKER"])
hvd.init()
weight = tf.Variable([0.0, float(worker)])
state = hvd.elastic.TensorFlowState(variables=[weight], step=0)

@tf.function
def step():  # traced once: it runs in each of the worlds, with the number of ranks that this world has
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight)
    (gradient,) = hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, [weight])
    weight.assign_add(gradient)
    return hvd.size_op()

@hvd.elastic.run
def train(state):
    print(json.dumps({"enters": state.step, "worker": worker, "weight": weight.numpy().tolist()}), flush=True)
    while state.step < 8:
        if worker == 1 and state.step == 5:
            os.kill(os.getpid(), 9)
        assert int(step()) == hvd.size()
        state.step += 1
        if state.step % 2 == 0:
            state.commit()

train(state)
print(json.dumps({"ends": state.step, "worker": worker, "weight": weight.numpy().tolist()}), flush=True)
hvd.shutdown()
"""


@pytest.mark.parametrize("options, ranks_after", [("--min-np 2", 2), ("--min-np 1 --replacements 0", 1)])
def test_a_job_goes_on_from_its_last_commit(options, ranks_after):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    variables.update(OMP_NUM_THREADS="1", FARANDOLE_START_TIMEOUT_S="100")
    command = [FARANDOLE, "run", "-np", "2", *options.split(), "--", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=allowed(180))
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    rows = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if "{" in line]
    entered = [(one["worker"], one["enters"], one["weight"]) for one in rows if "enters" in one]
    # 4 steps were committed; 2 ranks add 2 in each. A new rank gets the state of the one that remained.
    assert sorted(entered) == [(0, 0, [0, 0]), (0, 4, [8, 8]), (1, 0, [0, 0]), (2, 4, [8, 8])][: 2 + ranks_after], rows
    ends = [(one["ends"], one["weight"]) for one in rows if "ends" in one]
    assert ends == [(8, [8 + 4 * ranks_after] * 2)] * ranks_after, rows


def keeps_states():
    hvd.init()
    rank = hvd.rank()
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.build((None, 2))
    optimizer = tf.keras.optimizers.SGD(0.5, momentum=0.5)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0)
    step = lambda factor: optimizer.apply_gradients(  # noqa: E731
        [(tf.fill([2, 1], factor), model.trainable_variables[0])]
    )
    step(1.0)
    same(tf.convert_to_tensor(model.trainable_variables[0]), np.full((2, 1), 0.5))
    state.epoch = 1
    state.save()
    step(2.0)
    state.epoch = 2
    state.restore()
    assert state.epoch == 1
    same(tf.convert_to_tensor(model.trainable_variables[0]), np.full((2, 1), 0.5))
    step(0.0)  # the momentum of the first step is there again
    same(tf.convert_to_tensor(model.trainable_variables[0]), np.full((2, 1), 0.25))
    model.trainable_variables[0].assign(tf.fill([2, 1], float(rank)))
    state.epoch = rank + 5
    state.sync()
    same(tf.convert_to_tensor(model.trainable_variables[0]), np.zeros((2, 1)))
    assert state.epoch == 5
    plain = hvd.elastic.TensorFlowState([tf.Variable(float(rank))], value=rank)
    plain.sync()
    assert plain.value == 0 and float(plain.variables[0]) == 0
    with pytest.raises(ValueError, match="sessions"):
        hvd.elastic.TensorFlowState([], session=object())


def test_states():
    launch(2, keeps_states)
