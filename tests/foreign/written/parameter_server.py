"""To the shape of pytorch/examples, distributed/rpc/batch: a parameter server, and trainers that call it by RPC."""

import os
import threading

import torch
import torch.distributed.rpc as rpc
from torch import nn, optim

UPDATES = 3


class BatchUpdateParameterServer:
    def __init__(self, batch_update_size):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.lock = threading.Lock()
        self.future_model = torch.futures.Future()
        self.batch_update_size = batch_update_size
        self.curr_update_size = 0
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)

    def get_model(self):
        return self.model

    @staticmethod
    @rpc.functions.async_execution
    def update_and_fetch_model(ps_rref, grads):
        self = ps_rref.local_value()
        with self.lock:
            self.curr_update_size += 1
            for p, g in zip(self.model.parameters(), grads):  # noqa: B905 as it stands there
                p.grad += g
            fut = self.future_model
            if self.curr_update_size >= self.batch_update_size:
                for p in self.model.parameters():
                    p.grad /= self.batch_update_size
                self.curr_update_size = 0
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
                fut.set_result(self.model)
                print("PS updated model", flush=True)
                self.future_model = torch.futures.Future()
        return fut


def run_trainer(ps_rref, rank):
    model = ps_rref.rpc_sync().get_model()
    for update in range(UPDATES):
        torch.manual_seed(update * 10 + rank)
        loss = (model(torch.randn(8, 4)) - 1).pow(2).mean()
        model.zero_grad()
        loss.backward()
        print(f"trainer {rank} update {update}", flush=True)
        call = BatchUpdateParameterServer.update_and_fetch_model
        model = rpc.rpc_sync(ps_rref.owner(), call, args=(ps_rref, [p.grad for p in model.parameters()]))
    return sum(p.sum().item() for p in model.parameters())


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=16, rpc_timeout=60)
    if rank != 0:
        rpc.init_rpc(f"trainer{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    else:
        rpc.init_rpc("ps", rank=rank, world_size=world_size, rpc_backend_options=options)
        ps_rref = rpc.RRef(BatchUpdateParameterServer(world_size - 1))
        futs = [rpc.rpc_async(f"trainer{r}", run_trainer, args=(ps_rref, r)) for r in range(1, world_size)]
        print("Finished training:", [f"{x:.4f}" for x in torch.futures.wait_all(futs)])
    rpc.shutdown()


if __name__ == "__main__":
    main()
