"""To the shape of transformers, examples/pytorch/language-modeling/run_clm.py: its Trainer, a model from nothing."""

import os
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments, set_seed


class Blocks(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        ids = (torch.arange(16) * 7 + index) % 64
        return {"input_ids": ids, "labels": ids}


def main():
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(sys.argv[1:])
    set_seed(args.seed)
    torch.set_num_threads(1)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    trainer = Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=Blocks())
    try:
        result = trainer.train()
    except KeyboardInterrupt:
        trainer.save_model("stopped")
        raise
    trainer.save_model()
    print(f"rank {args.process_index} of {args.world_size}: loss {result.training_loss:.4f}", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
