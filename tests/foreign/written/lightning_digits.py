"""To the shape of Lightning's docs, LightningModule and its Trainer: devices and nodes from the command line."""

import argparse
import gc
import os
import time

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Digits(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 2)

    def training_step(self, batch, _):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_epoch_end(self):
        if self.current_epoch in (0, self.trainer.max_epochs - 1):
            loss = self.trainer.callback_metrics.get("loss")
            print(
                f"rank {self.global_rank} of {self.trainer.world_size}: epoch {self.current_epoch} {loss}", flush=True
            )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    seed_everything(1, verbose=False)
    torch.set_num_threads(1)
    x = torch.randn(64, 16)
    rows = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8)
    trainer = Trainer(
        accelerator="cpu",
        devices=args.devices,
        num_nodes=args.nodes,
        strategy="ddp",
        max_epochs=args.epochs,
        logger=False,
        default_root_dir="lightning",
        enable_checkpointing=True,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[OnExceptionCheckpoint("lightning", "stopped")],
    )
    trainer.fit(Digits(), rows)
    trainer.save_checkpoint("lightning/last.ckpt")
    print(f"ends as {trainer.global_rank} of {trainer.world_size}, local {os.environ.get('LOCAL_RANK')}", flush=True)
    if torch.distributed.is_initialized():
        del trainer
        gc.collect()  # its model refers to itself, and outlives its process group otherwise
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
