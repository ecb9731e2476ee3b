"""The program of each rank of test_keras.py. It prints one line of JSON for each check."""

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import horovod.keras as hvd
import keras
import numpy as np
import torch

STEPS, BATCH = 6, 8


def report(**what):
    sys.stdout.write(json.dumps({"rank": hvd.rank(), **what}) + "\n")
    sys.stdout.flush()


def data():
    random = np.random.default_rng(3)
    return random.normal(0, 1, (STEPS * BATCH * 2, 5)).astype("float32"), random.normal(
        0, 1, (STEPS * BATCH * 2, 1)
    ).astype("float32")


def model(optimizer, seed):
    keras.utils.set_random_seed(seed)
    made = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7, "tanh"), keras.layers.Dense(1)])
    made.compile(optimizer, "mse", jit_compile=False)
    return made


def weights_of(made):
    return [keras.ops.convert_to_numpy(one).tolist() for one in made.weights]


def as_one_process_on_the_joint_batch():
    """Ranks begin with different weights and get different halves of each batch."""
    inputs, labels = data()
    mine = np.arange(len(inputs)).reshape(STEPS, 2, BATCH)[:, hvd.rank()].reshape(-1)
    together = model(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01, clipnorm=0.1)), 10 + hvd.rank())
    metrics = hvd.callbacks.MetricAverageCallback()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), metrics]
    history = together.fit(inputs[mine], labels[mine], BATCH, 2, 0, callbacks, shuffle=False)
    alone = model(
        keras.optimizers.Adam(0.01, clipnorm=0.1), 10
    )  # clipping applies to the averages, not to each rank's part
    expected = alone.fit(inputs, labels, 2 * BATCH, 2, 0, shuffle=False)
    far = max(np.abs(np.subtract(a, b)).max() for a, b in zip(weights_of(together), weights_of(alone)))
    report(
        check="joint",
        weights=weights_of(together),
        far=float(far),
        loss=history.history["loss"],
        alone=expected.history["loss"],
    )
    together.save(sys.argv[2] + f"/{hvd.rank()}.keras")
    loaded = hvd.load_model(sys.argv[2] + f"/{hvd.rank()}.keras")
    same = all(np.array_equal(a, b) for a, b in zip(weights_of(together), weights_of(loaded)))
    iterations = int(keras.ops.convert_to_numpy(loaded.optimizer.iterations))
    plain = keras.models.load_model(sys.argv[2] + f"/{hvd.rank()}.keras")
    loaded.fit(inputs[mine], labels[mine], BATCH, 1, 0, shuffle=False)
    alone.fit(inputs, labels, 2 * BATCH, 1, 0, shuffle=False)
    far = max(np.abs(np.subtract(a, b)).max() for a, b in zip(weights_of(loaded), weights_of(alone)))
    report(check="loaded", same=same, iterations=iterations, kind=type(loaded.optimizer).__name__, far=float(far),
         plain=type(plain.optimizer).__module__)  # fmt: skip


def learning_rates_warm_up_to_the_requested_value():
    inputs, labels = data()
    rates = []
    warm = hvd.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=2)
    made = model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.2, momentum=0.5)), 1)
    look = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: rates.append(
            float(keras.ops.convert_to_numpy(made.optimizer.learning_rate))
        )
    )
    halve = hvd.callbacks.LearningRateScheduleCallback(0.2, 0.5, start_epoch=2)
    history = made.fit(inputs[: 4 * BATCH], labels[: 4 * BATCH], BATCH, 3, 0, [warm, halve, look])
    report(check="rates", rates=rates, lr=history.history["lr"])


def one_rank_overflows():
    """A gradient is infinite on rank 1 only: both ranks skip that step, and neither waits for the other."""
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=4.0)
    )
    weight = keras.Variable(np.zeros(3, "float32"))
    steps = []
    for step in range(3):
        bad = step == 1 and hvd.rank() == 1
        optimizer.apply([torch.full((3,), float("inf") if bad else 4.0 * (hvd.rank() + 1))], [weight])
        steps.append(float(keras.ops.convert_to_numpy(weight)[0]))
    report(check="overflow", steps=steps)


def unsupported_calls_are_refused():
    errors = []

    def refused(work):
        try:
            work()
            errors.append(None)
        except (ValueError, NotImplementedError) as error:
            errors.append(str(error))

    sgd = keras.optimizers.SGD
    inside = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(sgd()))
    inputs, labels = data()
    refused(lambda: model(inside, 1).fit(inputs, labels, 8, 1, 0, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]))
    refused(lambda: hvd.DistributedOptimizer(sgd(), op=3))
    refused(lambda: hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd())))
    refused(lambda: hvd.DistributedOptimizer(sgd(), gradient_predivide_factor=2.0, op=hvd.Sum))
    refused(lambda: hvd.broadcast_global_variables(0))
    report(check="refused", errors=errors)


def values_between_ranks():
    rank = hvd.rank()
    report(check="values", mean=float(hvd.allreduce(rank + 1.0)), sum=hvd.allreduce([rank, 1], op=hvd.Sum).tolist(),
         all=hvd.allgather(np.array([rank] * (rank + 1))).tolist(), first=float(hvd.broadcast(rank + 5, 1)),
         part=hvd.reducescatter(np.arange(4.0), op=hvd.Sum).tolist())  # fmt: skip
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=hvd.Compression.fp16, gradient_predivide_factor=2.0
    )
    weight = keras.Variable(np.zeros(2, "float32"))
    optimizer.apply([torch.tensor([1.0, 3.0]) * (rank + 1)], [weight])
    report(check="compressed", weight=keras.ops.convert_to_numpy(weight).tolist(), keeps=type(optimizer).__name__)


def later_attributes_are_state():
    """Rank 0 alone assigns an attribute; then another model replaces the first."""
    state = hvd.elastic.KerasState(model(keras.optimizers.SGD(0.05), hvd.rank()), epoch=0)
    state._private = 1
    if hvd.rank() == 0:
        state.later = [1]
    state.sync()
    state.later.append(2)
    state._private = 2
    state.restore()
    facts = dict(later=state.later, private=state._private)
    other = model(keras.optimizers.SGD(0.05), 7)
    state.model = other
    before = weights_of(other)
    other.layers[0].kernel.assign(other.layers[0].kernel * 0)
    state.restore()
    report(check="state", **facts, kept=weights_of(other) == before, same=state.model is other)


def elastic():
    """Rank 1 of the first generation dies in the middle of an epoch; the others go on from the last commit."""
    inputs, labels = data()
    made = model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), hvd.rank())
    state = hvd.elastic.KerasState(made, batch=0, epoch=0)
    born = os.path.join(sys.argv[2], "died")

    class Die(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if state.epoch == 1 and batch == 2 and hvd.rank() == 1 and not os.path.exists(born):
                open(born, "w").close()
                os.kill(os.getpid(), 9)

    @hvd.elastic.run
    def train(state):
        report(check="enters", epoch=state.epoch, iterations=int(keras.ops.convert_to_numpy(made.optimizer.iterations)))
        callbacks = [Die(), hvd.elastic.UpdateBatchStateCallback(state), hvd.elastic.UpdateEpochStateCallback(state),
                     hvd.elastic.CommitStateCallback(state, batches_per_commit=2)]  # fmt: skip
        made.fit(inputs[: 4 * BATCH], labels[: 4 * BATCH], BATCH, 3 - state.epoch, 0, callbacks, shuffle=False)

    train(state)
    report(check="ends", weights=weights_of(made), epoch=state.epoch)


if __name__ == "__main__":
    hvd.init()
    if sys.argv[1] == "elastic":
        elastic()
    else:
        as_one_process_on_the_joint_batch()
        learning_rates_warm_up_to_the_requested_value()
        one_rank_overflows()
        unsupported_calls_are_refused()
        values_between_ranks()
        later_attributes_are_state()
    hvd.shutdown()
