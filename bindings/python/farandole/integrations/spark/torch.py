"""TorchEstimator: trains a PyTorch model on the rows of a DataFrame. Import it as farandole.spark.torch."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from .estimator import COMMON, BaseEstimator, BaseModel, as_list

__all__ = ["TorchEstimator", "TorchModel"]


class TorchEstimator(BaseEstimator):
    """Spark ML's Estimator for a torch.nn.Module.

    `model`, `optimizer`: the module and an optimizer of its parameters.
    `loss`: a function of (output, label), or a list with one for each label; `loss_weights` weighs them.
    `metrics`: functions of (output, label) by name, which are averaged over rows.
    `feature_cols`, `label_cols`: columns of numbers, arrays of numbers or vectors. Numbers with a fraction become
    float32 and integers int64; `input_shapes` gives each input its shape, such as [[-1, 1, 28, 28]].
    `store`: a Store or its path. `validation`: a fraction of the rows, or a column that marks them.
    `num_proc`, `start_timeout`, `env`: as in farandole.spark.run.
    `batch_size`: rows of one step on one rank. `epochs`, `shuffle`, `random_seed`, `train_steps_per_epoch`,
    `validation_steps_per_epoch`, `val_batch_size`, `backward_passes_per_step`, `gradient_compression`.
    `transformation_fn`: maps a batch, {column: array}, before it is used.
    `run_id`: continues the run of that name after its last complete epoch, if the store has its checkpoint.
    `keep_data`: leaves the Parquet files in the store.

    Training is deterministic: the same rows, ranks and seed give the same bits on the same kind of machine.
    """

    NAMES = {**COMMON, "input_shapes": None, "loss_weights": None}

    def _training(self) -> Callable[[dict], dict]:
        from .torch_training import train

        return train

    def _task(self, *given) -> dict:
        return dict(super()._task(*given), model=self.model, optimizer=self.optimizer, input_shapes=self.input_shapes,
                    loss_weights=self.loss_weights)  # fmt: skip

    def _model_of(self, trained: dict, run_id: str, features: list[str], labels: list[str]):
        import torch

        self.model.load_state_dict(torch.load(io.BytesIO(trained["weights"]), weights_only=True))
        return TorchModel(model=self.model, feature_columns=features, label_columns=labels, run_id=run_id,
                          output_cols=self.output_cols, history=trained["history"],
                          output_sizes=trained["output_sizes"], input_shapes=self.input_shapes)  # fmt: skip


class TorchModel(BaseModel):
    """Spark ML's Model with a torch.nn.Module: transform() adds its outputs. history: one dict for each epoch."""

    def _predictor(self) -> Callable[[list], list]:
        module = self.model.cpu().eval()

        def predict(inputs: list) -> list[Any]:
            import torch

            with torch.no_grad():
                found = module(*[torch.from_numpy(one) for one in inputs])
            return [one.float().numpy() for one in (found if isinstance(found, (tuple, list)) else [found])]

        return predict

    def outputs(self) -> list[str]:
        count = len(self.output_sizes or as_list(self.label_columns))
        names = super().outputs()
        return names if len(names) == count else [f"output_{at}" for at in range(count)]
