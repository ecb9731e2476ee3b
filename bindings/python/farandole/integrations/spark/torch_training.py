"""train(): what each rank of a TorchEstimator runs."""

from __future__ import annotations

import io
import itertools
import random
from typing import Any

from .dataset import Shard, inputs_of


def train(task: dict) -> dict | None:
    """Trains the model of the task. Rank 0 returns the weights, the history and the sizes of the outputs."""
    import numpy
    import torch

    import farandole.torch as hvd

    hvd.init()
    random.seed(task["random_seed"])
    numpy.random.seed(task["random_seed"])
    torch.manual_seed(task["random_seed"])
    return _Training(task, hvd, torch).run()


class _Training:
    def __init__(self, task: dict, hvd, torch):
        self.task, self.hvd, self.torch = task, hvd, torch
        self.device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
        self.model = task["model"].to(self.device)  # in place: the optimizer keeps its parameters
        self.losses = task["loss"] if isinstance(task["loss"], (list, tuple)) else [task["loss"]] * len(task["labels"])
        self.weights = task["loss_weights"] or [1.0] * len(self.losses)
        metrics = task["metrics"] or {}
        self.metrics = (
            metrics
            if isinstance(metrics, dict)
            else {one.__name__: one for one in (metrics if isinstance(metrics, (list, tuple)) else [metrics])}
        )
        self.output_sizes: list[int] = []
        self.history: list[dict[str, Any]] = []

    def run(self) -> dict | None:
        task, hvd = self.task, self.hvd
        plain = task["optimizer"]
        self._restore(plain)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(plain, root_rank=0)
        self.history = hvd.broadcast_object(self.history, root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            plain, named_parameters=self.model.named_parameters(),
            compression=task["gradient_compression"] or hvd.Compression.none,
            backward_passes_per_step=task["backward_passes_per_step"])  # fmt: skip
        columns = [*task["features"], *task["labels"]]
        data = Shard(task["data"].train, columns, hvd.rank(), hvd.size())
        held_out = task["data"].validation and Shard(task["data"].validation, columns, hvd.rank(), hvd.size())
        for epoch in range(len(self.history), task["epochs"]):
            self._epoch(epoch, data, held_out, optimizer)
            if hvd.rank() == 0:
                self._save(plain)
        if hvd.rank() != 0:
            return None
        if not self.output_sizes:  # the checkpoint had all epochs already
            with self.torch.no_grad():
                self._forward(next(data.batches(task["batch_size"], None)))
        stream = io.BytesIO()
        self.torch.save(self.model.cpu().state_dict(), stream)
        return {"weights": stream.getvalue(), "history": self.history, "output_sizes": self.output_sizes}

    def _epoch(self, epoch: int, data: Shard, held_out: Shard | None, optimizer) -> None:
        task = self.task
        seed = [task["random_seed"], epoch, self.hvd.rank()] if task["shuffle"] else None
        entry: dict[str, Any] = {"epoch": epoch}
        self.model.train()
        batches = data.batches(task["batch_size"], seed)
        # The number of steps is the same on all ranks, because their shards have as many rows.
        entry["train"] = self._pass(itertools.islice(batches, task["train_steps_per_epoch"]), optimizer)
        if held_out:
            self.model.eval()
            batches = held_out.batches(task["val_batch_size"], None)
            with self.torch.no_grad():
                entry["validation"] = self._pass(itertools.islice(batches, task["validation_steps_per_epoch"]), None)
        self.history.append(entry)
        if self.hvd.rank() == 0 and task["verbose"]:
            print(entry, flush=True)

    def _pass(self, batches, optimizer) -> dict[str, float]:
        """One pass over the batches: trains if there is an optimizer. Returns averages over all rows of all ranks."""
        sums = dict.fromkeys(["loss", *self.metrics], 0.0)
        rows, waiting = 0, 0
        for batch in batches:
            outputs, labels, count = self._forward(batch)
            loss = sum(weight * loss(output, label) for weight, loss, output, label in
                       zip(self.weights, self.losses, outputs, labels))  # fmt: skip
            if optimizer is not None:
                loss.backward()
                waiting += 1
                if waiting == self.task["backward_passes_per_step"]:
                    optimizer.step()
                    optimizer.zero_grad()
                    waiting = 0
            rows += count
            sums["loss"] += float(loss.detach()) * count
            for name, metric in self.metrics.items():
                sums[name] += float(metric(outputs[0] if len(outputs) == 1 else outputs,
                                           labels[0] if len(labels) == 1 else labels)) * count  # fmt: skip
        if waiting:
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
        totals = self.torch.tensor([rows, *sums.values()], dtype=self.torch.float64)
        totals = self.hvd.allreduce(totals, op=self.hvd.Sum, name="farandole.estimator.totals").tolist()
        return {name: total / totals[0] for name, total in zip(sums, totals[1:])}

    def _forward(self, batch: dict) -> tuple[list, list, int]:
        task = self.task
        if task["transformation_fn"] is not None:
            batch = task["transformation_fn"](batch)
        move = lambda one: self.torch.from_numpy(one).to(self.device)  # noqa: E731
        inputs = inputs_of(batch, task["features"], task["input_shapes"])
        outputs = self.model(*map(move, inputs))
        outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        self.output_sizes = [one[0].numel() for one in outputs]
        return outputs, [move(batch[name]) for name in task["labels"]], len(inputs[0])

    def _save(self, optimizer) -> None:
        stream = io.BytesIO()
        state = {"model": self.model.state_dict(), "optimizer": optimizer.state_dict(), "history": self.history}
        self.torch.save(state, stream)
        self.task["store"].write(self.task["checkpoint"], stream.getvalue())

    def _restore(self, optimizer) -> None:
        """Loads the checkpoint on rank 0, whose state the others get."""
        data = self.task["store"].read(self.task["checkpoint"]) if self.hvd.rank() == 0 else None
        if data is None:
            return
        state = self.torch.load(io.BytesIO(data), map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        self.history = state["history"]
