"""Training scripts as people write them, in the shape of pytorch/examples' multinode.py and of accelerate's example of
checkpoints: launched twice, the second time they go on where the first ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.test_launch_engines import put, two
from tests.lab.virtual_lab import VirtualLab

pytestmark = pytest.mark.real
SNAPSHOT = """
import argparse, gc, os
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

class Trainer:
    def __init__(self, path):
        self.rank, self.path, self.begin = int(os.environ["RANK"]), path, 0
        model = torch.nn.Linear(20, 1)
        if os.path.exists(path):
            snapshot = torch.load(path)
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.begin = snapshot["EPOCHS_RUN"]
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(self, epochs):
        rows = TensorDataset(torch.rand(96, 20), torch.rand(96, 1))
        batches = DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows))
        for epoch in range(self.begin, self.begin + epochs):
            batches.sampler.set_epoch(epoch)
            for source, targets in batches:
                self.optimizer.zero_grad()
                torch.nn.functional.mse_loss(self.model(source), targets).backward()
                self.optimizer.step()
            if int(os.environ["LOCAL_RANK"]) == 0:
                torch.save({"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}, self.path)
        print("epochs", self.begin, epoch + 1, flush=True)

parser = argparse.ArgumentParser()
parser.add_argument("epochs", type=int)
init_process_group("gloo")
trainer = Trainer("snapshot.pt")
trainer.train(parser.parse_args().epochs)
# a model that outlives its process group can hang as it is freed: torch joins gloo's threads and holds the GIL
del trainer
gc.collect()  # it refers to itself
destroy_process_group()
"""
CHECKPOINTING = """
import argparse, os
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch.utils.data import DataLoader, TensorDataset

def training_function(epochs):
    # no folder is shared: a checkpoint lies on each node
    accelerator = Accelerator(project_config=ProjectConfiguration(save_on_each_node=True))
    rows = TensorDataset(torch.rand(96, 20), torch.rand(96, 1))
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    model, optimizer, batches, scheduler = accelerator.prepare(
        model, optimizer, DataLoader(rows, batch_size=8, shuffle=True), scheduler
    )
    found = sorted(name for name in os.listdir() if name.startswith("epoch_"))
    if found:
        accelerator.load_state(found[-1])
    begin = int(found[-1].removeprefix("epoch_")) + 1 if found else 0
    for epoch in range(begin, begin + epochs):
        for source, targets in batches:
            loss = torch.nn.functional.mse_loss(model(source), targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.save_state(f"epoch_{epoch}")
    print("epochs", begin, epoch + 1, flush=True)
    accelerator.wait_for_everyone()
    # see above
    model, optimizer, batches, scheduler = accelerator.free_memory(model, optimizer, batches, scheduler)
    accelerator.end_training()

parser = argparse.ArgumentParser()
parser.add_argument("epochs", type=int)
training_function(parser.parse_args().epochs)
"""


@pytest.mark.parametrize(
    ("script", "options"),
    [(SNAPSHOT, []), (CHECKPOINTING, ["--engine", "accelerate", "--cpu"])],
    ids=["ddp", "accelerate"],
)
def test_a_second_launch_goes_on(lab: VirtualLab, tmp_path: Path, script: str, options: list[str]) -> None:
    put(lab.enrol(), train_py=script)
    where = two(lab, tmp_path)
    try:
        for epochs in ("0 2", "2 4"):
            launch = ["launch", *options, "--name", f"from{epochs[0]}", "train.py", "2"]
            done = lab.fleet(*where, *launch, cwd=tmp_path, timeout=300)
            assert done.returncode == 0, done.stderr
            said = [path.read_text() for path in tmp_path.glob(f"runs/from{epochs[0]}-*/*/rank*.out")]
            assert said == [f"epochs {epochs}\n"] * 3
    finally:
        for host in lab.names[:2]:
            lab.sh(host, "cd ~/engines && rm -rf snapshot.pt epoch_*")
