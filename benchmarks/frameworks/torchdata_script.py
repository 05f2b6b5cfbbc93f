"""Train a bare loop over torchdata's StatefulDataLoader, saving weights, optimizer, loader and generators.

As in https://docs.pytorch.org/data/0.11/stateful_dataloader_tutorial.html. Generators are restored with
everything else; with --after-iter only once `iter()` has drawn from them, which is in no document.
"""

import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from task import BATCH, NUM_STEPS, SAVE_EVERY, SEED, Samples, digest, make_net, make_parser
from torchdata.stateful_dataloader import StatefulDataLoader


def get_generators():
    return {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()}


def set_generators(state):
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["random"])


def main():
    parser = make_parser()
    parser.add_argument("--after-iter", action="store_true", help="restore generators after iter()")
    args = parser.parse_args()

    torch.manual_seed(SEED)
    np.random.seed(SEED)
    random.seed(SEED)
    model = make_net(args.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = StatefulDataLoader(
        Samples(args.augment), batch_size=BATCH, shuffle=True, num_workers=args.workers
    )

    checkpoint = Path("checkpoints/last.pt")
    checkpoint.parent.mkdir(exist_ok=True)
    step, generators = 0, None
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step, generators = saved["step"], saved["generators"]
        if not args.after_iter:
            set_generators(generators)

    while step < NUM_STEPS:
        batches = iter(loader)
        if args.after_iter and generators is not None:
            set_generators(generators)
            generators = None
        for rows, labels in batches:
            loss = F.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % SAVE_EVERY == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                state |= {"loader": loader.state_dict(), "generators": get_generators()}
                torch.save(state, "checkpoints/new.pt")
                Path("checkpoints/new.pt").replace(checkpoint)
            if step == NUM_STEPS:
                break
    print("weights", digest(model))


if __name__ == "__main__":
    main()
