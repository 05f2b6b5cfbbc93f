"""Progress bars that redraw themselves."""
import sys, time
from training import batches, digest, small, train
from tqdm import tqdm
from rich.progress import BarColumn, MofNCompleteColumn, Progress

model = small()
train(model, given=tqdm(list(batches()), bar_format="{desc}{n_fmt}/{total_fmt}", mininterval=0, miniters=1, file=sys.stdout))
with Progress(BarColumn(), MofNCompleteColumn()) as progress:
    train(model, given=progress.track(list(batches())))
    progress.print("inside")
print(digest(model), tqdm.get_lock() is not None)
