"""Elastic training with fit: farandole.keras.elastic, or the same for Keras 2."""

from .versions import is_keras_2

if is_keras_2():
    from ..keras2.elastic import (
        CommitStateCallback,
        KerasState,
        UpdateBatchStateCallback,
        UpdateEpochStateCallback,
        run,
    )
else:
    from ...keras.elastic import (  # noqa: F401
        CommitStateCallback,
        KerasState,
        UpdateBatchStateCallback,
        UpdateEpochStateCallback,
        run,
    )
