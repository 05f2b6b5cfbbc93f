"""The causes that verify can name: in words, with what to do, and the experiment that would prove each.

Owns the words. Which cause it is, is found by the modules that read the evidence.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause. `holds`: what experiments hold still; the first that makes runs the same proves it."""

    words: str
    fix: str
    holds: tuple[str, ...] = ()


CAUSES = {
    "unseeded-torch": Cause(
        words="torch's global generator is used and never seeded",
        fix="call torch.manual_seed(SEED) before the first draw",
        holds=("torch",),
    ),
    "unseeded-numpy": Cause(
        words="NumPy's generator is used and never seeded",
        fix="call numpy.random.seed(SEED) before the first draw, or draw from numpy.random.default_rng(SEED)",
        holds=("numpy",),
    ),
    "unseeded-random": Cause(
        words="the generator of Python's `random` is used and never seeded",
        fix="call random.seed(SEED) before the first draw, or draw from random.Random(SEED)",
        holds=("random",),
    ),
    "late-seed-torch": Cause(
        words=(
            "numbers are drawn from torch's generator before it is seeded, or from one that is made without "
            "a seed"
        ),
        fix="call torch.manual_seed(SEED) before the first draw: making a layer draws, too",
        holds=("torch",),
    ),
    "late-seed-numpy": Cause(
        words=(
            "numbers are drawn from NumPy's generator before it is seeded, or from one that is made without "
            "a seed"
        ),
        fix="call numpy.random.seed(SEED) before the first draw, and pass a seed to numpy.random.default_rng",
        holds=("numpy",),
    ),
    "late-seed-random": Cause(
        words=(
            "numbers are drawn from the generator of Python's `random` before it is seeded, or from one "
            "that is made without a seed"
        ),
        fix="call random.seed(SEED) before the first draw, and pass a seed to random.Random",
        holds=("random",),
    ),
    "seeded-from-time": Cause(
        words="a generator is seeded from the clock, another number in each run",
        fix="seed it with a fixed number",
        holds=("clock",),
    ),
    "seeded-from-system": Cause(
        words="a generator is seeded from the process id or the system's entropy, another number in each run",
        fix="seed it with a fixed number",
        holds=("entropy",),
    ),
    "drawn-from-system": Cause(
        words="a number comes from the system's entropy, which no seed can fix",
        fix="draw it from a generator with a seed: random.Random(SEED), torch.Generator().manual_seed(SEED)",
        holds=("entropy",),
    ),
    "clock-branch": Cause(
        words="a reading of the clock decides what is computed",
        fix="let step numbers decide, not measured time",
        holds=("clock",),
    ),
    "environment-branch": Cause(
        words="an environment variable decides what is computed",
        fix="make it an argument or a constant of the script, the same wherever it runs",
    ),
    "listing-order": Cause(
        words="files are used in the order in which the folder lists them, which no file system promises",
        fix="sort the listing: sorted(folder.glob(...)), sorted(os.listdir(...))",
        holds=("listing",),
    ),
    "set-order": Cause(
        words="a set of texts is iterated: their hashes are random in each process, and so is the order",
        fix="iterate over sorted(...) or dict.fromkeys(...) instead of a set",
        holds=("hash",),
    ),
    "unordered-sum": Cause(
        words="a set of objects is iterated in the order of their addresses, other in each process",
        fix="iterate over a list, or dict.fromkeys(...) to drop duplicates: both keep their order",
        holds=("addresses",),
    ),
    "address-dependence": Cause(
        words=(
            "the result depends on where things lie in memory, which is random in each process: a set of "
            "objects has the order of their addresses, and some kernels round by alignment"
        ),
        fix="look at the line for a set or an id(); if there is none, it is the kernel of the operation",
        holds=("addresses",),
    ),
    "thread-order": Cause(
        words="results are used in the order in which Python threads finished",
        fix="put results in the order of their tasks: pool.map, or a list with a place for each",
        holds=("threads",),
    ),
    "thread-race": Cause(
        words="Python threads change the same tensor in the order in which they get to it",
        fix="let each thread return its result, and add them up in a fixed order",
        holds=("threads",),
    ),
    "uninitialised-memory": Cause(
        words="memory of `torch.empty` is read before it is written: it holds whatever was there",
        fix="use torch.zeros or torch.full, or write every element first",
        holds=("algorithms",),
    ),
    "racy-operation": Cause(
        words="this operation adds from several threads in any order: same inputs, another result",
        fix="call torch.use_deterministic_algorithms(True), or use an operation that has an order",
        holds=("algorithms", "intraop"),
    ),
    "custom-function": Cause(
        words="a custom autograd function gives another gradient for the same one",
        fix="make its backward sum in a fixed order",
        holds=("threads",),
    ),
    "thread-count": Cause(
        words="the number of threads is left open, and kernels sum in another order with another number",
        fix="set it: torch.set_num_threads(N)",
    ),
    "compiled-once": Cause(
        words="torch.compile is on in one run only; compiled and eager code round differently",
        fix="compile in every run or in none",
    ),
    "dataset-generator": Cause(
        words="the dataset draws from a generator of its own, and each worker has a copy of it",
        fix="draw from a generator that is seeded for each sample, or for each epoch and worker",
    ),
    "worker-count": Cause(
        words="the dataset draws from the worker's own generator: another number of workers, other draws",
        fix="seed a generator for each sample, for example from the sample's index and the epoch",
    ),
    "seeded-per-rank": Cause(
        words="each process seeds with its own rank, and what is drawn depends on how many there are",
        fix="seed by the number of the sample or of the part of the batch, not by the rank",
    ),
    "process-count": Cause(
        words="the result depends on the number of processes: each sums its own share of a batch first",
        fix="sum in an order that does not know the number of processes: truestep.Run with lanes does",
    ),
    "model-not-saved": Cause(
        words="the resumed run begins with weights that the first one never had",
        fix="save the model's whole state_dict() and load it with strict=True",
    ),
    "optimizer-not-saved": Cause(
        words="the checkpoint has no optimizer state: moments begin at zero after a resume",
        fix="save optimizer.state_dict() too, and load it",
    ),
    "scheduler-not-saved": Cause(
        words="the checkpoint has no scheduler state: the learning rate begins again after a resume",
        fix="save scheduler.state_dict() too, and load it",
    ),
    "generator-not-saved": Cause(
        words="the checkpoint has no generator state: after a resume other numbers are drawn",
        fix="save torch.get_rng_state() (and those of NumPy and random where used), and set them again",
    ),
    "kept-state-not-saved": Cause(
        words=(
            "the checkpoint lacks something that the script keeps besides model and optimizer, such as "
            "averaged weights, a teacher or a queue: it begins again after a resume"
        ),
        fix="save it too (a module's state_dict(), a tensor as it is), and load it",
    ),
    "state-not-saved": Cause(
        words="same data, same weights, no draw, another loss: something that it depends on was not saved",
        fix="look for what changes while training and is in no state_dict: counters, averages, schedules",
    ),
    "generator-moved-after-restore": Cause(
        words=(
            "the generator is set back to where it stood, and then a loader begins: iter() draws from it, "
            "an order or a seed for workers"
        ),
        fix=(
            "set the generator back after iter(loader), and give the loader a generator of its own that is "
            "seeded by the epoch"
        ),
    ),
    "worker-generator-not-saved": Cause(
        words="the dataset draws from the generators of loader workers, which begin anew after a resume",
        fix="seed a generator for each sample, for example from the sample's index and the epoch",
    ),
    "loader-position-not-saved": Cause(
        words="a resumed epoch begins at its first batch again",
        fix="save the position in the epoch, and skip to it: torchdata's StatefulDataLoader, truestep.Loader",
    ),
    "shuffle-epoch-not-restored": Cause(
        words="after a resume the sampler counts epochs from zero again: another shuffle",
        fix="call set_epoch with the number of the epoch since the beginning",
    ),
    "data-order-not-restored": Cause(
        words="after a resume other batches come: what decides their order was not saved",
        fix="seed the sampler for each epoch, and save epoch and position",
    ),
    "buffers-not-saved": Cause(
        words="the checkpoint has no buffers: running statistics begin anew after a resume",
        fix="save model.state_dict(), which has buffers too, and load it with strict=True",
    ),
    "bucket-rebuild": Cause(
        words=(
            "DistributedDataParallel rebuilds its buckets after the first step, and again after a resume: "
            "sums of gradients have another order there"
        ),
        fix="no setting of DDP avoids it; truestep.Run sums in an order of its own",
    ),
    "unknown": Cause(
        words="not found: no source that is known to differ explains it",
        fix="the operation and the line above are where it first shows; look at what leads there",
    ),
}


@dataclass(kw_only=True)
class Finding:
    """What is told of a difference: a cause, the place, and what speaks for it."""

    name: str
    file: str | None = None
    line: int | None = None
    operation: str | None = None
    module: str | None = None
    distance: str | None = None
    evidence: list[str] = field(default_factory=list)
    is_proved: bool = False
    """Whether an experiment, or the way of running itself, leaves no other cause."""
