"""Lightning over backend="farandole": an ordinary setting of its strategies.

pip install lightning
torchrun --nproc-per-node 2 examples/11_lightning.py
"""

import os

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Fit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 1)

    def training_step(self, batch, _):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.05)


def main():
    torch.manual_seed(0)
    inputs = torch.randn(512, 16)
    targets = inputs @ torch.randn(16, 1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), max_epochs=10,
        strategy=DDPStrategy(process_group_backend="farandole"), logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Fit(), DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True))
    if trainer.is_global_zero:
        loss = trainer.callback_metrics["loss_epoch"].item()
        print(f"11_lightning: backend {dist.get_backend()}, {trainer.world_size} ranks, loss {loss:.4f}")


if __name__ == "__main__":
    main()
