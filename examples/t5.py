"""T5 learns to translate, with DeepSpeed: number words here, or pairs of your own and a pretrained model.

    fleet launch --engine deepspeed examples/t5.py --deepspeed_config examples/t5.json
    fleet launch --engine deepspeed t5.py --deepspeed_config t5.json --model t5-small --pairs en-de.tsv

Without --model a tiny T5 with random weights, of which nothing is downloaded: it learns English number words in German.
--pairs is a file of lines "source TAB target". Without a GPU set DS_ACCELERATOR=cpu: gloo then carries the traffic.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
WORDS = {word: number for number, word in enumerate(["<pad>", "</s>", *ENGLISH, *GERMAN])}
Pair = tuple[list[int], list[int]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--local_rank", type=int, default=-1, help="set by DeepSpeed's launcher")
    parser.add_argument("--model", help="a pretrained T5: a folder on the nodes, or a name of the hub")
    parser.add_argument("--pairs", type=Path, help="what to translate, and how")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--max-loss", type=float, default=float("inf"), help="exit 1 when the last one is higher")
    return deepspeed.add_config_arguments(parser).parse_args()


def tiny() -> tuple[Any, list[Pair]]:
    """A T5 of 90,000 weights, and sentences of two to four numbers."""
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 4}
    torch.manual_seed(0)
    config = T5Config(vocab_size=32, dropout_rate=0.0, decoder_start_token_id=0, **sizes)
    draw = random.Random(0)
    sentences = [draw.choices(range(10), k=draw.randint(2, 4)) for _ in range(2000)]
    pairs = [([WORDS[ENGLISH[n]] for n in s] + [1], [WORDS[GERMAN[n]] for n in s] + [1]) for s in sentences]
    return T5ForConditionalGeneration(config), pairs


def pretrained(name: str, file: Path) -> tuple[Any, list[Pair]]:
    tokens = AutoTokenizer.from_pretrained(name)
    lines = (line.split("\t") for line in file.read_text("utf-8").splitlines())
    pairs = [(tokens(source).input_ids[:128], tokens(target).input_ids[:128]) for source, target in lines]
    return T5ForConditionalGeneration.from_pretrained(name), pairs


def padded(rows: list[list[int]], filler: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [filler] * (width - len(row)) for row in rows])


def together(pairs: list[Pair]) -> dict[str, torch.Tensor]:
    """A batch: what is padding in the targets, -100, costs nothing."""
    sources = padded([source for source, _ in pairs], 0)
    return {"input_ids": sources, "attention_mask": sources.ne(0), "labels": padded([t for _, t in pairs], -100)}


def main() -> None:
    args = arguments()
    on_cpu = get_accelerator().device_name() == "cpu"
    if on_cpu:
        torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo" if on_cpu else None)
    model, pairs = pretrained(args.model, args.pairs) if args.model else tiny()
    collate: Callable[[list[Pair]], dict[str, torch.Tensor]] = together
    # DeepSpeed's own Adam is compiled code: for GPUs it is what the wheel was built for
    adam = torch.optim.AdamW if on_cpu else deepspeed.ops.adam.FusedAdam
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=model, optimizer=adam(model.parameters(), lr=args.lr), training_data=pairs, collate_fn=collate
    )
    losses = []
    batches = iter(deepspeed.runtime.dataloader.RepeatingLoader(loader))
    for _ in range(args.steps):
        loss = engine(**{name: part.to(engine.device) for name, part in next(batches).items()}).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    rank, world = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    stage, optimizer = engine.zero_optimization_stage(), type(engine.basic_optimizer).__name__
    print(
        f"rank {rank} of {world}: T5, ZeRO-{stage}, {optimizer}, loss {losses[0]:.3f} -> {losses[-1]:.3f}", flush=True
    )
    deepspeed.comm.destroy_process_group()
    if losses[-1] > args.max_loss:
        raise SystemExit(f"loss {losses[-1]:.3f} is above {args.max_loss}")


if __name__ == "__main__":
    main()
