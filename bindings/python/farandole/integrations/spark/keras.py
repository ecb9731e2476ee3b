"""KerasEstimator: trains a Keras 3 model on the rows of a DataFrame. Import it as farandole.spark.keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .estimator import COMMON, BaseEstimator, BaseModel
from .keras_models import loaded_here, saved

__all__ = ["KerasEstimator", "KerasModel"]


class KerasEstimator(BaseEstimator):
    """Spark ML's Estimator for a Keras model, on the backend PyTorch (KERAS_BACKEND=torch).

    `model`: the model; `optimizer`, `loss`, `metrics`, `loss_weights`: as in model.compile().
    `callbacks`: callbacks of fit() for all ranks. `custom_objects`: classes and functions of the model by name.
    The other parameters are those of TorchEstimator; columns keep their shape, and a model with several inputs or
    outputs gets lists. `transformation_fn`, `run_id` and `history` are as there.
    """

    NAMES = {**COMMON, "callbacks": None, "custom_objects": None, "loss_weights": None, "input_shapes": None}
    VARIABLES = {"KERAS_BACKEND": "torch"}

    def _training(self) -> Callable[[dict], Any]:
        from .keras_training import train

        return train

    def _task(self, *given) -> dict:
        import keras

        return dict(super()._task(*given), model=saved(self.model),
                    optimizer=keras.optimizers.serialize(keras.optimizers.get(self.optimizer)),
                    callbacks=self.callbacks, custom_objects=self.custom_objects, loss_weights=self.loss_weights,
                    input_shapes=self.input_shapes)  # fmt: skip

    def _model_of(self, trained: dict, run_id: str, features: list[str], labels: list[str]):
        self.model.set_weights(trained["weights"])
        return KerasModel(model=self.model, feature_columns=features, label_columns=labels, run_id=run_id,
                          output_cols=self.output_cols, history=trained["history"], input_shapes=self.input_shapes,
                          output_sizes=trained["output_sizes"], custom_objects=self.custom_objects)  # fmt: skip


class KerasModel(BaseModel):
    """Spark ML's Model with a Keras model: transform() adds its outputs. history: one dict for each epoch."""

    NAMES = {**BaseModel.NAMES, "custom_objects": None}

    def _predictor(self) -> Callable[[list], list]:
        data, custom = saved(self.model), self.custom_objects

        def predict(inputs: list) -> list[Any]:
            model = loaded_here(data, custom)
            found = model(inputs[0] if len(inputs) == 1 else inputs, training=False)
            return [one.detach().float().cpu().numpy()
                    for one in (found if isinstance(found, (tuple, list)) else [found])]  # fmt: skip

        return predict
