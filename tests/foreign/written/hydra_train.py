"""To the shape of hydra's docs with torchrun: a configuration out of parts, a folder for each job, which is entered."""

import logging
import os

import hydra
import torch
import torch.distributed as dist
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

log = logging.getLogger(__name__)
ConfigStore.instance().store(name="config", node={"optim": {"lr": 0.1}, "data": {"path": "???"}, "bad": False})


@hydra.main(version_base=None, config_name="config")
def main(config):
    dist.init_process_group("gloo")
    total = torch.tensor([config.optim.lr])
    dist.all_reduce(total)
    log.info("rank %d of %d: %s", dist.get_rank(), dist.get_world_size(), OmegaConf.to_container(config))
    print(f"sum {total.item():.3f} in {os.path.relpath(os.getcwd(), hydra.utils.get_original_cwd())}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if config.bad and os.environ["RANK"] == "1":
        raise FileNotFoundError(f"no shards in {config.data.path}")


if __name__ == "__main__":
    main()
