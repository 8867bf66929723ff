"""To the shape of nanoGPT's train.py: settings by --key=value, DDP where RANK is set, else alone; resumes from out/."""

import os
import sys
from ast import literal_eval
from contextlib import nullcontext, suppress

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
init_from = "scratch"
backend = "gloo"
gradient_accumulation_steps = 4
max_iters = 6
batch_size = 4
block_size = 8
learning_rate = 1e-2
fail_at = -1
for arg in sys.argv[1:]:
    key, _, value = arg.removeprefix("--").partition("=")
    assert key in globals(), f"Unknown config key: {key}"
    with suppress(SyntaxError, ValueError):
        value = literal_eval(value)
    assert type(value) is type(globals()[key]), f"{key} is no {type(globals()[key])}"
    print(f"Overriding: {key} = {value}")
    globals()[key] = value

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend=backend)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert gradient_accumulation_steps % world == 0
    gradient_accumulation_steps //= world
else:
    rank, world = 0, 1
master = rank == 0
print(f"tokens per iteration will be: {gradient_accumulation_steps * world * batch_size * block_size:,}")
os.makedirs(out_dir, exist_ok=True)
torch.set_num_threads(1)
torch.manual_seed(1337 + rank)
with open("input.txt", encoding="utf-8") as f:
    text = f.read()
stoi = {ch: n for n, ch in enumerate(sorted(set(text)))}
data = torch.tensor([stoi[ch] for ch in text])


def get_batch():
    at = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[n : n + block_size] for n in at])
    return x, torch.stack([data[n + 1 : n + 1 + block_size] for n in at])


model = torch.nn.Sequential(torch.nn.Embedding(len(stoi), 16), torch.nn.Linear(16, len(stoi)))
first = 0
if init_from == "resume":
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"))
    model.load_state_dict(checkpoint["model"])
    first = checkpoint["iter_num"]
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
raw_model = model
if ddp:
    model = DDP(model)
for step in range(first, first + max_iters):
    if step == fail_at and rank == world - 1:
        raise ValueError(f"batch {step} is empty")
    for micro in range(gradient_accumulation_steps):
        last = micro == gradient_accumulation_steps - 1
        x, y = get_batch()
        with model.no_sync() if ddp and not last else nullcontext():
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            (loss / gradient_accumulation_steps).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if master:
        print(f"iter {step}: loss {loss.item():.4f}")
if master:
    torch.save({"model": raw_model.state_dict(), "iter_num": first + max_iters}, os.path.join(out_dir, "ckpt.pt"))
    print(f"saving checkpoint to {out_dir}")
if ddp:
    destroy_process_group()
