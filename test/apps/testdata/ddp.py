"""A data-parallel training under torchrun: `ddp.py DIRECTORY STEPS [die]`. It goes on from the checkpoint that DIRECTORY/latest names, with any number
of workers: rank 0 saves the model, each rank a file of its own beside it, in a directory that rank 0 has made. With `die` the last worker is killed
while it saves the last of them."""
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

top, steps, die = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["die"]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
first = 0
latest = os.path.join(top, "latest")
if os.path.exists(latest):
    with open(latest) as f:
        first, workers = map(int, f.read().split())
    where = os.path.join(top, f"step-{first}")
    saved = torch.load(os.path.join(where, "model.pt"), map_location="cpu")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    for other in range(workers):  # each reads what all have written
        assert torch.load(os.path.join(where, f"rank{other}.pt")) == {"rank": other, "step": first}
for step in range(first + 1, first + steps + 1):
    torch.manual_seed(step * 1000 + rank)
    loss = model(torch.randn(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 != 0:
        continue
    where = os.path.join(top, f"step-{step}")
    if rank == 0:
        os.makedirs(where)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, os.path.join(where, "model.pt"))
    dist.barrier()
    with open(os.path.join(where, f"rank{rank}.pt"), "wb") as f:
        torch.save({"rank": rank, "step": step}, f)
        if die and rank == size - 1 and step == first + steps:
            os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    if rank == 0:
        with open(latest + ".new", "w") as f:
            print(step, size, file=f)
        os.rename(latest + ".new", latest)
        print(step, repr(loss.item()), flush=True)
dist.destroy_process_group()
