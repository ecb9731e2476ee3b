"""Callbacks for fit: those of farandole.keras, or those for Keras 2."""

from .versions import is_keras_2

if is_keras_2():
    from ..keras2.callbacks import (
        BestModelCheckpoint,
        BroadcastGlobalVariablesCallback,
        LearningRateScheduleCallback,
        LearningRateWarmupCallback,
        MetricAverageCallback,
    )
else:
    from ...keras import callbacks as _callbacks
    from ...keras.callbacks import (  # noqa: F401
        BroadcastGlobalVariablesCallback,
        LearningRateScheduleCallback,
        LearningRateWarmupCallback,
        MetricAverageCallback,
    )

    class BestModelCheckpoint(_callbacks.BestModelCheckpoint):
        """farandole.keras.callbacks.BestModelCheckpoint, with the order of arguments of horovod.tensorflow.keras."""

        def __init__(self, monitor="val_loss", verbose=0, mode="auto", save_weights_only=False, save_freq="epoch",
                     filepath=None):  # fmt: skip
            super().__init__(monitor, verbose, mode, save_freq, save_weights_only, filepath)
