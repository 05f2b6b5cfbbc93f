"""DistributedDataParallel on two spawned processes."""
# slow: two processes import torch
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel
from training import batches, digest, small

def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model = DistributedDataParallel(small())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rank::2]), y[rank::2]).backward()
        optimizer.step()
    torch.save({"digest": digest(model.module)}, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.manual_seed(0)
    multiprocessing.spawn(work, args=(os.getcwd(),), nprocs=2)
    print([torch.load(f"rank{rank}.pt")["digest"] for rank in range(2)])
    os.path.exists("meeting") and os.remove("meeting")
