"""Schedules of learning rates, one of the script's own, chains of them, and averaged weights."""
import torch
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel, SWALR, update_bn
from training import batches, digest, small

class Own(schedules.LRScheduler):
    def get_lr(self):
        print("own", self.last_epoch, self._get_lr_called_within_step if hasattr(self, "_get_lr_called_within_step") else "")
        return [base / (1 + self.last_epoch) for base in self.base_lrs]

model = small()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
made = [
    Own(optimizer), schedules.OneCycleLR(optimizer, 0.1, total_steps=20), schedules.LambdaLR(optimizer, lambda step: print("rate", step) or 0.9**step),
    schedules.SequentialLR(optimizer, [schedules.LinearLR(optimizer), schedules.CosineAnnealingWarmRestarts(optimizer, 3)], [2]),
    schedules.ChainedScheduler([schedules.StepLR(optimizer, 2), schedules.ExponentialLR(optimizer, 0.9)]), schedules.ReduceLROnPlateau(optimizer, patience=1),
]
averaged = AveragedModel(model, avg_fn=lambda old, new, num: print("average", num.item()) or old * 0.9 + new * 0.1)
for x, y in batches():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    averaged.update_parameters(model)
    for scheduler in made:
        scheduler.step(loss.item()) if isinstance(scheduler, schedules.ReduceLROnPlateau) else scheduler.step()
    print(optimizer.param_groups[0]["lr"])
SWALR(optimizer, 0.05).step()
update_bn([(x,)], averaged)
print(digest(model, averaged), made[0].state_dict())
