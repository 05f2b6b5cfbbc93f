"""Train with Accelerate, going on from the last saved state.

As in https://huggingface.co/docs/accelerate/usage_guides/checkpoint and its example by_feature/checkpointing.
With --seedable the sampler is the one that DataLoaderConfiguration(use_seedable_sampler=True) gives.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from task import BATCH, NUM_STEPS, SAVE_EVERY, SEED, Samples, digest, make_net, make_parser
from torch.utils.data import DataLoader


def main():
    parser = make_parser()
    parser.add_argument("--seedable", action="store_true", help="use Accelerate's seedable sampler")
    args = parser.parse_args()

    set_seed(SEED)
    options = DataLoaderConfiguration(use_seedable_sampler=args.seedable)
    accelerator = Accelerator(cpu=True, dataloader_config=options)
    net = make_net(args.dropout)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    loader = DataLoader(Samples(args.augment), batch_size=BATCH, shuffle=True, num_workers=args.workers)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)

    overall_step = 0
    saved = sorted(Path("checkpoints").glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    if saved:
        accelerator.load_state(saved[-1])
        overall_step = int(saved[-1].name.removeprefix("step_"))
    starting_epoch, resume_step = divmod(overall_step, len(loader))

    num_epochs = -(-NUM_STEPS // len(loader))
    for epoch in range(starting_epoch, num_epochs):
        model.train()
        loader.set_epoch(epoch)
        active_loader = loader
        if epoch == starting_epoch and resume_step:
            active_loader = accelerator.skip_first_batches(loader, resume_step)
        for rows, labels in active_loader:
            loss = F.cross_entropy(model(rows), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            overall_step += 1
            if overall_step % SAVE_EVERY == 0:
                accelerator.save_state(f"checkpoints/step_{overall_step}")
            if overall_step == NUM_STEPS:
                break
    print("weights", digest(net))


if __name__ == "__main__":
    main()
