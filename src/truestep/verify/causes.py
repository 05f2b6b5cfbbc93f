"""The causes that verify can name: in words, with what to do, and the experiments that would prove each.

Owns the words. Which cause it is, is found by the modules that read the evidence.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause. `frozen_sources`: what experiments freeze; the first that makes runs the same proves it."""

    words: str
    fix: str
    frozen_sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is held still in some runs. They must be the same then, and a run without it must not be."""

    words: str
    cause: str | None = None
    """What it proves where the evidence speaks for nothing; None: it is made for a suspect only."""
    reading: str | None = None
    """What the script must have been seen to read, or it cannot matter."""


EXPERIMENTS = {
    "torch": Experiment(words="torch's generator seeded", cause="unseeded-torch"),
    "random": Experiment(words="Python's `random` seeded", cause="unseeded-random"),
    "numpy": Experiment(words="NumPy's generator seeded", cause="unseeded-numpy"),
    "hash": Experiment(words="PYTHONHASHSEED=0", cause="string-hash"),
    "threads": Experiment(words="Python threads run one after the other", cause="thread-order"),
    "listing": Experiment(words="sorted folder listings", cause="listing-order", reading="listing"),
    "clock": Experiment(words="a frozen clock", cause="clock-branch", reading="clock"),
    "algorithms": Experiment(words="torch.use_deterministic_algorithms(True)", cause="racy-operation"),
    "addresses": Experiment(words="fixed memory addresses", cause="address-dependence"),
    "entropy": Experiment(words="the system's entropy replaced by fixed bytes"),
    "intraop": Experiment(words="one thread for torch"),
}
"""By what is frozen. Where nothing is suspected, they are made in this order: the usual causes first."""

CAUSES = {
    "unseeded-torch": Cause(
        words="torch's generator is used before it is seeded, or never seeded",
        fix="call torch.manual_seed(SEED) before the first draw; creating a layer draws too",
        frozen_sources=("torch",),
    ),
    "unseeded-numpy": Cause(
        words="NumPy's generator is used before it is seeded, or never seeded",
        fix="call numpy.random.seed(SEED) before the first draw, and pass a seed to numpy.random.default_rng",
        frozen_sources=("numpy",),
    ),
    "unseeded-random": Cause(
        words="Python's `random` is used before it is seeded, or never seeded",
        fix="call random.seed(SEED) before the first draw, or draw from random.Random(SEED)",
        frozen_sources=("random",),
    ),
    "seeded-from-time": Cause(
        words="a generator is seeded from the clock, which gives a different seed in each run",
        fix="seed it with a fixed number",
        frozen_sources=("clock",),
    ),
    "seeded-from-system": Cause(
        words="a generator is seeded from the process id or the system's entropy, which differs in each run",
        fix="seed it with a fixed number",
        frozen_sources=("entropy",),
    ),
    "drawn-from-system": Cause(
        words="a number comes from the system's entropy, which no seed can fix",
        fix="draw it from a generator with a seed: random.Random(SEED), torch.Generator().manual_seed(SEED)",
        frozen_sources=("entropy",),
    ),
    "clock-branch": Cause(
        words="a reading of the clock decides what is computed",
        fix="decide by step numbers, not by measured time",
        frozen_sources=("clock",),
    ),
    "environment-branch": Cause(
        words="an environment variable decides what is computed",
        fix="make it an argument or a constant of the script, so that it is the same on every machine",
    ),
    "listing-order": Cause(
        words="files are used in the order of the folder listing, which file systems do not guarantee",
        fix="sort the listing: sorted(folder.glob(...)), sorted(os.listdir(...))",
        frozen_sources=("listing",),
    ),
    "set-order": Cause(
        words="a set of strings is iterated: their hashes are random in each process, and so is the order",
        fix="iterate over sorted(...) or dict.fromkeys(...) instead of a set",
        frozen_sources=("hash",),
    ),
    "string-hash": Cause(
        words="hashes of strings decide what is computed, and they are random in each process",
        fix="use zlib.crc32(text.encode()) or hashlib in place of hash(), and sorted(...) in place of a set",
        frozen_sources=("hash",),
    ),
    "object-set-order": Cause(
        words="a set of objects is iterated in the order of their addresses, which differ in each process",
        fix="iterate over a list, or over dict.fromkeys(...) to drop duplicates: both keep their order",
        frozen_sources=("addresses",),
    ),
    "address-dependence": Cause(
        words=(
            "the result depends on memory addresses, which are random in each process: a set of "
            "objects has the order of their addresses, and some kernels round differently by alignment"
        ),
        fix="check the line for a set or an id(); if there is none, the operation's kernel is the cause",
        frozen_sources=("addresses",),
    ),
    "thread-order": Cause(
        words="results are used in the order in which Python threads finish",
        fix="put results in the order of their tasks: use pool.map, or a list with a slot for each",
        frozen_sources=("threads",),
    ),
    "thread-race": Cause(
        words="Python threads change values while the script trains: what they make depends on when they run",
        fix="give each thread what it needs with each request, and combine the results in a fixed order",
        frozen_sources=("threads",),
    ),
    "uninitialised-memory": Cause(
        words="memory from `torch.empty` is read before it is written: its contents are arbitrary",
        fix="use torch.zeros or torch.full, or write every element first",
        frozen_sources=("algorithms",),
    ),
    "racy-operation": Cause(
        words="this operation sums from several threads in any order: same inputs, different results",
        fix="call torch.use_deterministic_algorithms(True), or use a deterministic operation",
        frozen_sources=("algorithms", "intraop"),
    ),
    "custom-function": Cause(
        words="a custom autograd function returns different gradients for the same input",
        fix="make its backward sum in a fixed order",
        frozen_sources=("threads",),
    ),
    "thread-count": Cause(
        words="the number of threads is not fixed, and kernels sum in a different order when it changes",
        fix="fix it: torch.set_num_threads(N)",
    ),
    "compiled-once": Cause(
        words="torch.compile is on in one run only; compiled and eager code round differently",
        fix="compile in every run or in none",
    ),
    "dataset-generator": Cause(
        words="the dataset draws from its own generator, and each worker has a copy of it",
        fix="draw from a generator that is seeded for each sample, or for each epoch and worker",
    ),
    "worker-count": Cause(
        words="the dataset draws from the worker's generator, so the draws depend on the number of workers",
        fix="seed a generator for each sample, for example from the sample's index and the epoch",
    ),
    "seeded-per-rank": Cause(
        words="each process seeds with its own rank, so the draws depend on the number of processes",
        fix="seed by the index of the sample or of the part of the batch, not by the rank",
    ),
    "process-count": Cause(
        words="the result depends on the number of processes: each first sums its own share of a batch",
        fix="sum in an order that does not depend on the number of processes: truestep.Run with lanes does",
    ),
    "process-rounding": Cause(
        words="all numbers of processes compute the same, and round differently: each sums its share first",
        fix="none, if rounding is accepted; truestep.Run with lanes sums in one order on any number",
    ),
    "process-scaling": Cause(
        words="gradients grow or shrink with the number of processes: they are summed, or divided twice",
        fix="divide by the number of processes exactly once: DistributedDataParallel does it",
    ),
    "model-not-saved": Cause(
        words="the resumed run starts with weights that the first one never had",
        fix="save the model's whole state_dict() and load it with strict=True",
    ),
    "optimizer-not-saved": Cause(
        words="the optimizer's state is not restored: after a resume its averages are not what they were",
        fix="save its state_dict() with the model's, and load it",
    ),
    "scheduler-not-saved": Cause(
        words="the scheduler's state is not restored: after a resume the learning rate is another",
        fix="save its state_dict() with the model's, and load it",
    ),
    "generator-not-saved": Cause(
        words="a random generator is not where it was without the kill: the resumed run draws other numbers",
        fix="save the state of each generator that is used (torch, NumPy, random) last, and restore it last",
    ),
    "kept-state-not-saved": Cause(
        words=(
            "state that the script keeps besides model and optimizer is not restored after a resume, such "
            "as averaged weights, a teacher or a queue"
        ),
        fix="save it as well (a module's state_dict(), or the tensor), and load it",
    ),
    "variable-not-saved": Cause(
        words="a variable that training depends on is not restored after a resume",
        fix="save the variable with the model and the optimizer, and restore it",
    ),
    "end-not-restored": Cause(
        words=(
            "all steps are the same, and the resumed run makes another number of them: what decides its end "
            "was not saved"
        ),
        fix="save what the loop stops by: the step or epoch, the best value, the patience",
    ),
    "state-not-saved": Cause(
        words="same data and weights, but a different loss: it depends on state that the checkpoint lacks",
        fix="look for state that changes in training and is in no state_dict: counters, averages, schedules",
    ),
    "generator-moved-after-restore": Cause(
        words=(
            "torch's generator is restored, and then drawn from before the first step; iter() of a loader "
            "draws from it, for an order or a worker seed"
        ),
        fix="restore the generator last, and give each loader a separate generator, seeded by the epoch",
    ),
    "worker-generator-not-saved": Cause(
        words="the dataset draws from the generators of loader workers, which start over after a resume",
        fix="seed a generator for each sample, for example from the sample's index and the epoch",
    ),
    "loader-position-not-saved": Cause(
        words="a resumed epoch starts over at its first batch",
        fix="save the position in the epoch, and skip to it: torchdata's StatefulDataLoader, truestep.Loader",
    ),
    "shuffle-epoch-not-restored": Cause(
        words="after a resume the sampler counts epochs from zero, which gives a different shuffle",
        fix="call set_epoch with the epoch number counted from the start of training",
    ),
    "data-order-not-restored": Cause(
        words="batches differ after a resume: the state that decides their order was not saved",
        fix="seed the sampler for each epoch, and save epoch and position",
    ),
    "buffers-not-saved": Cause(
        words="buffers of a module, such as running statistics, are not restored after a resume",
        fix="save model.state_dict(), which includes buffers, and load it with strict=True",
    ),
    "bucket-rebuild": Cause(
        words=(
            "DistributedDataParallel rebuilds its buckets after the first step of each start: after a resume "
            "gradients are summed in a different order"
        ),
        fix="no DDP setting avoids it; truestep.Run sums in a fixed order",
    ),
    "rounding-only": Cause(
        words="both compute the same, and round differently",
        fix="none, if another torch, CPU or order of operations is intended; --save writes a new fingerprint",
    ),
    "training-changed": Cause(
        words="training computes something else: the difference is more than rounding",
        fix="check the operation above; if the change is intended, write a new fingerprint with --save",
    ),
    "miscompiled": Cause(
        words="compiled code is farther from the float64 result than rounding explains",
        fix="keep this module out of torch.compile (torch.compiler.disable), and report it to PyTorch",
    ),
    "unknown": Cause(
        words="not found: no known source of differences explains it",
        fix="check what leads to the operation and line above, where the difference first appears",
    ),
}


@dataclass(kw_only=True)
class FoundCause:
    """What is told of a difference: a cause, the place, and what speaks for it."""

    name: str
    file: str | None = None
    line: int | None = None
    operation: str | None = None
    module: str | None = None
    distance: str | None = None
    evidence: list[str] = field(default_factory=list)
    others: list["FoundCause"] = field(default_factory=list)
    """Causes that have to go away together with this one."""
    variables: list[str] = field(default_factory=list)
    """Of the script's, that were lost, by name."""
    kinds: dict[str, str] = field(default_factory=dict)
    """What each of these is, if that is known."""
    repair: list[str] = field(default_factory=list)
    """Lines of code that repair it."""
    is_proved: bool = False
    """Whether an experiment, or the way of running itself, leaves no other cause."""
