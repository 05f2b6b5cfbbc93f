"""Values for TensorBoard, read back from the file."""
# slow: tensorboard is imported
import glob, shutil
from training import digest, small, train
from torch.utils.tensorboard import SummaryWriter
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
import torch

model = small()
with SummaryWriter("events") as writer:
    model.register_forward_hook(lambda module, args, out: writer.add_scalar("mean", out.mean(), model.calls, walltime=0))
    for model.calls in range(3):
        train(model, num=4)
    writer.add_histogram("weight", model[0].weight, walltime=0)
    writer.add_graph(torch.nn.Linear(2, 2), torch.ones(1, 2))
events = EventAccumulator("events").Reload()
print([(item.step, item.value) for item in events.Scalars("mean")], events.Tags()["histograms"], len(glob.glob("events/*")), digest(model))
shutil.rmtree("events")
