"""Elastic training with fit on every backend: a rank dies in the middle of an epoch, and the others go on."""

import json
import os
import subprocess
import sys

import keras_backends
import pytest
from launch import FARANDOLE

PROGRAM = """
import json, os, sys
sys.path.insert(0, sys.argv[2])
import farandole.keras as hvd
import keras
from keras_models import BATCH, my_data, model, numpy_of

def report(**what):
    print(json.dumps({"rank": hvd.rank(), **what}), flush=True)

hvd.init()
inputs, labels = (one[: 4 * BATCH] for one in my_data())
made = model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), hvd.rank())
state = hvd.elastic.KerasState(made, batch=0, epoch=0)
died = os.path.join(sys.argv[1], "died")

class Die(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if state.epoch == 1 and batch == 2 and hvd.rank() == 1 and not os.path.exists(died):
            open(died, "w").close()
            os.kill(os.getpid(), 9)

@hvd.elastic.run
def train(state):
    report(check="enters", epoch=state.epoch, iterations=int(numpy_of([made.optimizer.iterations])[0]))
    callbacks = [Die(), hvd.elastic.UpdateBatchStateCallback(state), hvd.elastic.UpdateEpochStateCallback(state),
                 hvd.elastic.CommitStateCallback(state, batches_per_commit=2)]
    made.fit(inputs, labels, BATCH, 3 - state.epoch, 0, callbacks, shuffle=False)

train(state)
report(check="ends", weights=[one.tolist() for one in numpy_of(made.weights)], epoch=state.epoch)
hvd.shutdown()
"""


@pytest.mark.parametrize("backend", keras_backends.INSTALLED)
def test_a_model_goes_on_from_its_last_commit(backend, tmp_path):
    support = os.path.dirname(os.path.abspath(keras_backends.__file__))
    flags = ["-np", "2", "--min-np", "1", "--wait-for-replacements"]
    command = [FARANDOLE, "run", *flags, "--", sys.executable, "-c", PROGRAM, tmp_path, support]
    done = subprocess.run(list(map(str, command)), env=keras_backends.environment(backend), capture_output=True,
                          text=True, timeout=keras_backends.DEADLINE_S)  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    rows = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '{"rank"' in line]
    entered = sorted((one["epoch"], one["iterations"]) for one in rows if one["check"] == "enters")
    # In epoch 1 both ranks had committed two of four batches; the new rank gets them from the remaining one.
    assert entered == [(0, 0), (0, 0), (1, 6), (1, 6)], rows
    ends = [one for one in rows if one["check"] == "ends"]
    assert len(ends) == 2 and ends[0]["weights"] == ends[1]["weights"] and ends[0]["epoch"] == 3
