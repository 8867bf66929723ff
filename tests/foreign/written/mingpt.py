"""To the shape of pytorch/examples, distributed/minGPT-ddp: a character GPT, trained on a text file beside it."""

import os
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class GPTConfig:
    vocab_size: int
    block_size: int = 16
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 16


class CharDataset(Dataset):
    def __init__(self, path, block_size):
        with open(path, encoding="utf-8") as f:
            data = f.read()
        chars = sorted(set(data))
        print(f"Data has {len(data)} characters, {len(chars)} unique.")
        self.stoi = {ch: i for i, ch in enumerate(chars)}
        self.vocab_size = len(chars)
        self.block_size = block_size
        self.data = data

    def __len__(self):
        return len(self.data) - self.block_size

    def __getitem__(self, idx):
        dix = [self.stoi[s] for s in self.data[idx : idx + self.block_size + 1]]
        return torch.tensor(dix[:-1], dtype=torch.long), torch.tensor(dix[1:], dtype=torch.long)


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tok_emb = nn.Embedding(config.vocab_size, config.n_embd)
        self.pos_emb = nn.Embedding(config.block_size, config.n_embd)
        layer = nn.TransformerEncoderLayer(config.n_embd, config.n_head, 4 * config.n_embd, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, config.n_layer)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx, targets):
        length = idx.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tok_emb(idx) + self.pos_emb(torch.arange(length))
        logits = self.head(self.blocks(x, mask=mask, is_causal=True))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def main():
    init_process_group(backend="gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(1337)
    torch.set_num_threads(1)
    dataset = CharDataset("input.txt", 16)
    config = GPTConfig(dataset.vocab_size)
    model = DDP(GPT(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset), num_workers=1)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            loss = model(x, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 10 == 0:
                print(f"[GPU{rank}] Epoch {epoch} | Iter {step} | Train Loss {loss.item():.5f}")
        if rank == 0:
            torch.save({"model_state": model.module.state_dict(), "finished_epoch": epoch}, "gpt_snapshot.pt")
            print(f"Snapshot saved at epoch {epoch}")
    destroy_process_group()


if __name__ == "__main__":
    main()
