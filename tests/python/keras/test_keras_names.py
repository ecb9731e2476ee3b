"""The names and arguments that programs written for Horovod use: horovod.keras and horovod.tensorflow.keras."""

import importlib
import inspect

import keras_backends
import pytest

OPTIMIZER = (
    "optimizer, name=None, device_dense='', device_sparse='', compression=none, sparse_as_dense=False, "
    "gradient_predivide_factor=1.0, op=0, "
)
SIGNATURES = {
    "DistributedOptimizer": OPTIMIZER + "backward_passes_per_step=1, average_aggregated_gradients=False, num_groups=0, "
    "groups=None, process_set=gps, scale_local_gradients=True",
    "PartialDistributedOptimizer": OPTIMIZER + "backward_passes_per_step=1, average_aggregated_gradients=False, "
    "groups=None, process_set=gps, local_layers=None, scale_local_gradients=True",
    "broadcast_global_variables": "root_rank",
    "allreduce": "value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None, compression=none",
    "allgather": "value, name=None",
    "broadcast": "value, root_rank, name=None",
    "reducescatter": "value, name=None, op=0",
    "load_model": "filepath, custom_optimizers=None, custom_objects=None, compression=none, legacy_opts=False",
    "callbacks.BroadcastGlobalVariablesCallback": "root_rank, device='', local_variables=None",
    "callbacks.MetricAverageCallback": "device=''",
    "callbacks.LearningRateScheduleCallback": "initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, "
    "momentum_correction=True, steps_per_epoch=None",
    "callbacks.LearningRateWarmupCallback": "initial_lr, warmup_epochs=5, momentum_correction=True, "
    "steps_per_epoch=None, verbose=0",
    "elastic.KerasState": "model, optimizer=None, **attributes",
    "elastic.CommitStateCallback": "state, batches_per_commit=1",
    "elastic.UpdateBatchStateCallback": "state",
    "elastic.UpdateEpochStateCallback": "state",
    "elastic.run": "func",
}
# farandole adds its own arguments after these.
BEST_MODEL = {
    "horovod.keras": "monitor='val_loss', verbose=0, mode='auto', save_freq='epoch'",
    "horovod.tensorflow.keras": "monitor='val_loss', verbose=0, mode='auto', save_weights_only=False, "
    "save_freq='epoch'",
}
SHARED = "init shutdown rank size local_rank local_size cross_rank cross_size Average Sum Compression ProcessSet"


def modules():
    names = ["horovod.keras", "horovod.tensorflow.keras"]
    return names if keras_backends.INSTALLED[0] == "tensorflow" else names[:1]


def signature_of(module, name):
    found = module
    for part in name.split("."):
        found = getattr(found, part)
    defaults = {id(module.Compression.none): "none", id(module.global_process_set): "gps"}
    parts = []
    for one in inspect.signature(found).parameters.values():
        text = f"**{one.name}" if one.kind is one.VAR_KEYWORD else one.name
        if one.default is not one.empty:
            text += f"={defaults.get(id(one.default), repr(one.default))}"
        parts.append(text)
    return ", ".join(parts)


@pytest.mark.parametrize("name", modules())
def test_names_and_arguments(name):
    module = importlib.import_module(name)
    assert {one: signature_of(module, one) for one in SIGNATURES} == SIGNATURES
    assert signature_of(module, "callbacks.BestModelCheckpoint").startswith(BEST_MODEL[name])
    assert [one for one in SHARED.split() if not hasattr(module, one)] == []
