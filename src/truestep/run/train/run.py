"""The run: one thin object beside the user's own loop.

Ties folder, seeds, placement, tracking, steps and evaluation together; each of them lives elsewhere.
"""

import atexit
import copy
import json
import os
import platform
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from truestep import record
from truestep.base import plainfile, rng, runfiles
from truestep.base.device import pick_device
from truestep.base.memory import keep_freed
from truestep.base.redaction import redacted
from truestep.errors import TruestepError, UsageError
from truestep.run.checkpoint import Snapshot
from truestep.run.data import DeliveryPlan, Loader
from truestep.run.dist import join, lanes_of, tree
from truestep.run.dist.pulse import Pulse
from truestep.run.train import place as placing
from truestep.run.train.audit import Audit, AuditPlan
from truestep.run.train.carried import CarriedState
from truestep.run.train.evaluate import Conditions, Metric, evaluate
from truestep.run.train.exchange import Exchange
from truestep.run.train.fingerprint import fingerprint, pin_settings
from truestep.run.train.gradients import FiniteCheck, Gradients
from truestep.run.train.interrupt import Interrupt
from truestep.run.train.journal import Journal
from truestep.run.train.keeper import Keeper, Snapshots
from truestep.run.train.lock import FolderLock
from truestep.run.train.loop import Position, Steps, Surroundings
from truestep.run.train.norms import Norms
from truestep.run.train.parallel import Team
from truestep.run.train.progress import Terminal
from truestep.run.train.settings import find as find_settings
from truestep.run.train.step import NonFinite, Parts, Step

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Run:
    """A training run in a folder: killed and restarted, it gives one bit-for-bit identical result.

    Seeds every global generator at once, so build the model after it. Pins torch's thread count and
    deterministic algorithms for the process. `lanes` cuts each batch into that many micro-batches; it is
    part of the result, like the seed, and any number of processes up to it gives the same result. Without it
    there are as many lanes as processes, and the result depends on their number. `accept` names differences
    to accept when resuming. With `audit_every=K`, in every Kth step a second process computes one lane too
    and all compare their weights: a device that computes other bits is named, and the run stops. Speed
    settings in a file `truestep.toml` beside the script, as `truestep tune` writes it, replace the script's.
    """

    def __init__(  # noqa: PLR0913  # limits: grouping would hide what is used every day
        self,
        folder: str | os.PathLike[str],
        *,
        seed: int,
        lanes: int | None = None,
        threads: int | None = None,
        snapshots: Snapshots | None = None,
        nonfinite: NonFinite = "stop",
        accept: Sequence[str] = (),
        audit_every: int | None = None,
        progress: bool = True,
    ) -> None:
        _check_arguments(seed, lanes, nonfinite, accept)
        _check_audits(audit_every, lanes)
        self._settings = find_settings()
        self.folder = Path(folder)
        self._world = world = join()
        self._pulse = Pulse(world.rank, world.size)
        self._pulse.start()
        self._seed, self._nonfinite, self._audit_every = seed, nonfinite, audit_every
        self._num_lanes = world.size if lanes is None else lanes
        self._pin(threads)
        rng.seed_generators(seed, "init")
        self.device = pick_device(world.local_rank)
        self._team = Team(world, num_lanes=self._num_lanes, is_tied=lanes is None and world.size > 1)
        self._record = record.Record(None)
        self._run_id = self._team.first(self._claim)
        self._terminal = Terminal(is_on=progress, is_first=world.is_first)
        self._keeper = Keeper(
            self.folder.absolute(),
            run_id=self._run_id,
            options=snapshots or Snapshots(),
            accept=accept,
            record=self._record,
            terminal=self._terminal,
            world=world,
            require_folder=self._lock.require if world.is_first else lambda: None,
        )
        self._journal = Journal(self._record)
        self._interrupt = Interrupt()
        self._lane_seeds = rng.LazySeeds(seed, "lane")
        self._position = Position()
        self._placements: list[dict[str, Any]] = []
        self._scaler: torch.amp.GradScaler | None = None
        self._loop: Steps | None = None
        self._unverified_at: int | None = None
        self._snapshot: Snapshot | None = None
        self._has_begun = False
        self._phases: list[dict[str, Any]] = []  # one per call of steps: first_step, first_epoch, loader
        atexit.register(self._close_at_exit)

    def _claim(self) -> str:
        """Take the folder for this run; return the run's id."""
        with runfiles.explained(self.folder):
            runfiles.make_folder(self.folder)
            self._lock = FolderLock(self.folder)
            try:
                runfiles.require_own(self.folder / "snapshots")  # now, not in the middle of training
                run_id = _identify(self.folder)
                self._record = record.Record(self.folder / "record.jsonl")
            except BaseException:
                self._lock.release()
                raise
            return run_id

    @property
    def is_first(self) -> bool:
        """Whether this is the first of the run's processes: the one that should print."""
        return self._world.is_first

    @property
    def cursor(self) -> int:
        """The number of finished steps; one counts from its update on."""
        return self._loop.cursor if self._loop is not None else self._position.cursor

    def _pin(self, threads: int | None) -> None:
        """Set what holds for the whole process, by the settings or else as given."""
        pin_settings(self._settings.get("threads", threads), num_lanes=self._num_lanes)
        if self._settings.get("allocator", None) == "keep":
            keep_freed()

    def place(
        self,
        model: ModuleT,
        *,
        device: str | torch.device | None = None,
        precision: placing.Precision = "fp32",
        compile: bool = False,  # noqa: A002  torch's own word for it
        recompute: Sequence[str] = (),
        parallel: placing.Parallel = "ddp",
    ) -> ModuleT:
        """Move a model to the device and set how it runs; returns the same model.

        `precision` 'bf16' or 'fp16' runs its forward under autocast (fp16 with a loss scaler). `recompute`
        names modules by pattern ("blocks.*") whose activations are computed again in backward. `parallel`
        sets how several processes share it, with the same bits: 'ddp' sums gradients while backward runs,
        'flat' after it (for models of which some parameters are not always used), 'fsdp' shards parameters
        and optimizer state: then make optimizers after this call, and an EMA before it, placed alike.
        """
        precision = self._settings.get("precision", precision)
        compile = self._settings.get("compile", compile)  # noqa: A001
        self.device = torch.device(device) if device is not None else self.device
        placing.place(model, device=self.device, precision=precision, compiled=compile, recompute=recompute)
        if precision == "fp16" and self._scaler is None:
            self._scaler = torch.amp.GradScaler(self.device.type)
        self._team.add(model, parallel=parallel, precision=precision, compiled=compile, device=self.device)
        placement: dict[str, Any] = {"precision": precision, "compile": compile, "recompute": list(recompute)}
        self._placements.append(placement)
        return model

    def track(self, **objects: Any) -> None:
        """Name the objects that resuming must bring back: whatever has `state_dict()`."""
        if self._has_begun:
            raise UsageError(
                "run.track(...) comes before run.steps(...): resuming has to know everything first."
            )
        self._keeper.track(objects)

    def steps(self, loader: Loader, *, epochs: int | None = None, steps: int | None = None) -> Iterator[Step]:
        """Return an iterator over global steps, standing where the run stopped.

        Give `epochs` or `steps`. Called again, it continues with the next phase of training. A `break` ends
        the phase: started again, the run ends it at the same step, or continues with accept=["stopped"].
        """
        if (epochs is None) == (steps is None):
            raise UsageError("run.steps(loader, ...) needs exactly one of epochs= and steps=.")
        if not self._keeper.tracked:
            raise UsageError(
                "nothing is tracked. Call run.track(model=model, optimizer=optimizer) before run.steps(...)."
            )
        self._leave_loop(is_failed=False)
        if not self._has_begun:
            self._begin()
        loader.workers = self._settings.get("workers", loader.workers)
        index, saved = len(self._phases), self._saved_phases()
        phase: dict[str, Any] = {
            "first_step": self.cursor,
            "first_epoch": self._position.epoch,
            "loader": loader.recipe(),
        }
        self._team.require_same(phase["loader"])
        if index < len(saved):
            self._keeper.compare(saved[index]["loader"], phase["loader"], cursor=self.cursor)
            phase.update(first_step=saved[index]["first_step"], first_epoch=saved[index]["first_epoch"])
        self._phases.append(phase)
        if index < len(saved) - 1:
            self._lane_seeds.set_all(saved[index + 1]["first_step"])  # bits: as that phase left them
            return iter(())
        stop = self._keeper.take_stop(index)
        if stop is not None:
            epochs, steps = None, stop - phase["first_step"]
        return iter(self._open_loop(loader, phase, epochs=epochs, steps=steps))

    def _open_loop(
        self, loader: Loader, phase: dict[str, Any], *, epochs: int | None, steps: int | None
    ) -> Steps:
        tracked = self._keeper.tracked
        rank, size, is_dealt = self._world.rank, self._world.size, self._team.is_dealt(tracked)
        audits = self._plan_audits(is_dealt=is_dealt)
        plan = DeliveryPlan(
            seed=self._seed,
            num_lanes=self._num_lanes,
            lanes=lanes_of(rank, size=size, num_lanes=self._num_lanes, is_dealt=is_dealt),
            first_step=phase["first_step"],
            first_epoch=phase["first_epoch"],
            cursor=self.cursor,
            num_epochs=epochs,
            num_steps=steps,
            always_some=self._team.is_sharded,
            extra_lane=audits.extra_lane if audits else None,
        )
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None and len(self._phases) > 1:
            # bits: what the code between phases did to the state is in the snapshot already.
            self._restore(snapshot.states, snapshot.cursor)
        feed = loader.feed(plan, state=snapshot.states["loader"] if snapshot else None)
        per_epoch = loader.num_steps_per_epoch(self._num_lanes)
        total = steps if steps is not None else per_epoch and per_epoch * (epochs or 0)
        last = None if total is None else phase["first_step"] + total
        self._record.write("phase", first=phase["first_step"], end=last, data=phase["loader"])
        modules = [item for item in tracked.values() if isinstance(item, nn.Module)]
        sums = self._team.sums(tracked)
        parts = Parts(
            world=self._world,
            exchange=Exchange(self._world, num_lanes=self._num_lanes, device=self.device),
            seeds=self._lane_seeds,
            device=self.device,
            gradients=Gradients(tracked, tree=self._team.tree, sums=sums, is_tied=self._team.is_tied),
            num_lanes=self._num_lanes,
            norms=Norms(modules, num_lanes=self._num_lanes),
            carried=CarriedState(tracked) if self._world.size > 1 else None,
            is_sharded=self._team.is_sharded,
            is_dealt=is_dealt,
            is_finite=FiniteCheck(self.device),
            journal=self._journal,
            scaler=self._scaler,
            nonfinite=self._nonfinite,
            tracked=tracked,
            audit=Audit(audits, world=self._world, record=self._record, device=self.device),
            folder=self.folder,
        )
        self._journal.name_rates(item for item in tracked.values() if isinstance(item, Optimizer))
        self._loop = loop = Steps(parts, self._surroundings(), feed=feed, total=last)
        if snapshot is not None:
            self._expect_witness(loop, snapshot)
        elif self._unverified_at is not None:  # the loop before had no step left to be compared
            self._keeper.report_unverified(self._unverified_at)
        return loop

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            position=self._position,
            keeper=self._keeper,
            terminal=self._terminal,
            pulse=self._pulse,
            interrupt=self._interrupt,
            describe=self._describe,
        )

    def _plan_audits(self, *, is_dealt: bool) -> AuditPlan | None:
        if self._audit_every is None or self._world.size == 1:
            return None
        rank, size = self._world.rank, self._world.size
        return AuditPlan(
            every=self._audit_every, rank=rank, size=size, num_lanes=self._num_lanes, is_dealt=is_dealt
        )

    def _expect_witness(self, loop: Steps, snapshot: Snapshot) -> None:
        witness = self._keeper.witness(snapshot.cursor)
        # bits: with lanes tied to processes a step that leaves a witness is summed another way. After the end
        # of a loop no step leaves one, so none does when a longer one is continued from there.
        if witness is None and snapshot.facts.get("is_end"):
            self._keeper.report_unverified(snapshot.cursor)
        else:
            loop.expect_witness(witness)

    def _begin(self) -> None:
        """Restore the newest snapshot, if there is one, and open the record for this process."""
        if self._settings.path is not None:
            self._terminal.say(f"settings of {self._settings}")
        facts = {"recipe": self._recipe(), "fingerprint": fingerprint(self.device)}
        self._team.require_same({**facts["recipe"], **facts["fingerprint"]})
        self._team.check(self._keeper.tracked)
        self._keeper.is_sharded = self._team.is_sharded
        snapshot = self._keeper.load()
        if snapshot is not None:
            then = {**snapshot.facts["recipe"], **snapshot.facts["fingerprint"]}
            self._keeper.compare(then, {**facts["recipe"], **facts["fingerprint"]}, cursor=snapshot.cursor)
            is_early = len(snapshot.facts["phases"]) > 1
            # An optimizer keeps the tensors that it is given, and code between phases may write to them.
            states = copy.deepcopy(snapshot.states) if is_early else snapshot.states
            self._restore(states, snapshot.cursor, is_early=is_early)
            self._position.cursor = snapshot.cursor
            self._position.epoch = snapshot.facts["epoch"]
            seeds = snapshot.states["lane_seeds"]
            self._lane_seeds.is_used = seeds["is_used"]
            self._lane_seeds.is_touched = seeds.get("is_touched", False)  # 0.1 did not write it
            self._terminal.say(f"{self.folder}: resumed after step {snapshot.cursor:,}")
            if self._world.is_first:
                self._record.hold_if_finished(self.folder / "record.jsonl", cursor=snapshot.cursor)
        self._record.write(
            "start",
            version=record.VERSION,
            run=self._run_id,
            cursor=self.cursor,
            pid=os.getpid(),
            pids=self._world.gather(os.getpid()),
            host=platform.node(),
            argv=redacted(sys.orig_argv),
            processes=self._world.size,
            note=self._team.note,
            settings=dict(self._settings.values),
            **facts,
        )
        self._snapshot = snapshot
        self._has_begun = True

    def _restore(self, states: dict[str, Any], cursor: int, *, is_early: bool = False) -> None:
        self._keeper.apply(states["tracked"], cursor=cursor, is_early=is_early)
        if self._scaler is not None and "scaler" in states:
            self._scaler.load_state_dict(states["scaler"])

    def _saved_phases(self) -> list[dict[str, Any]]:
        return self._snapshot.facts["phases"] if self._snapshot is not None else []

    def _recipe(self) -> dict[str, Any]:
        """Everything chosen in the script that the bits depend on and that truestep can see."""
        optimizers = {
            name: [type(item).__name__, *(f"{key}={item.defaults.get(key)}" for key in ("foreach", "fused"))]
            for name, item in self._keeper.tracked.items()
            if isinstance(item, Optimizer)
        }
        return {
            "seed": self._seed,
            "lanes": self._num_lanes,
            "order_of_sums": "plain" if self._team.is_tied else "tree",
            "placement": self._placements,
            "optimizers": optimizers,
            "rng_version": rng.VERSION,
            "tree_version": tree.VERSION,
        }

    def _describe(self) -> dict[str, Any]:
        return {
            "recipe": self._recipe(),
            "fingerprint": fingerprint(self.device),
            "phases": self._phases,
            "epoch": self._position.epoch,
        }

    def evaluate(
        self,
        model: nn.Module,
        loader: Loader,
        *,
        metric: Metric,
        forward: Callable[[nn.Module, Any], tuple[Any, ...]] | None = None,
        name: str = "evaluate",
    ) -> Any:
        """Return the metric over the loader's whole dataset: each sample once, eval mode, no gradients.

        A batch (input, target) gives `metric.update(model(input), target)`; for other batches `forward`
        sets what the metric gets: on several processes it is sent to all, so let it return no more than the
        metric needs. Afterwards every module is in its former mode.
        """
        loader.workers = self._settings.get("workers", loader.workers)
        value = evaluate(
            model,
            loader,
            metric=metric,
            forward=forward,
            under=Conditions(
                device=self.device,
                seed=self._seed,
                num_lanes=self._num_lanes,
                world=self._world,
                in_step=self._team.is_sharded,
            ),
        )
        self._record.write("evaluate", name=name, cursor=self.cursor, value=value)
        return value

    def _leave_loop(self, *, is_failed: bool) -> None:
        """End the loop that the script left; unless by a failure, that is where its phase ends for good."""
        if self._loop is not None:
            self._loop.abandon()
            if self._loop.left_at is not None and not is_failed:
                self._keeper.leave_stop(len(self._phases) - 1, cursor=self._loop.left_at)
            self._unverified_at, self._loop = self._loop.unverified_at, None

    def close(self) -> None:
        """Finish writing and release the folder. Happens once, at exit at the latest."""
        self._close(is_failed=sys.exc_info()[1] is not None)

    def _close_at_exit(self) -> None:
        # Python's note of the exception that ended the script, if one did.
        self._close(is_failed=getattr(sys, "last_value", None) is not None)

    def _close(self, *, is_failed: bool) -> None:
        atexit.unregister(self._close_at_exit)
        try:
            self._leave_loop(is_failed=is_failed)
            self._keeper.close()
            if self._has_begun:
                self._record.write("end", cursor=self.cursor)
        finally:
            self._close_record()
            self._team.close()
            self._pulse.close()
            if self._world.is_first:
                self._lock.release()

    def _close_record(self) -> None:
        self._record.close()
        num_lost, self._record.num_lost = self._record.num_lost, 0
        if num_lost:
            self._terminal.warn(
                f"{num_lost} lines could not be written to {self.folder}, so reports of this run "
                f"have gaps. Check that its disk is not full. Training was not affected."
            )

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, _type: type[BaseException] | None, value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(value, Exception):
            self._pulse.end_if_lost(value)  # before `close` says goodbye as if nothing had happened
        self._close(is_failed=value is not None)


def _check_arguments(seed: int, lanes: int | None, nonfinite: str, accept: Sequence[str]) -> None:
    if not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise UsageError(f"seed must be a whole number of at most 64 bits, got {seed!r}.")
    if lanes is not None and (not isinstance(lanes, int) or lanes < 1):
        raise UsageError(f"lanes must be 1 or more, got {lanes!r}.")
    if nonfinite not in ("stop", "skip"):
        raise UsageError(f"nonfinite must be 'stop' or 'skip', got {nonfinite!r}.")
    if isinstance(accept, str):
        raise UsageError(
            f"accept is a list of field names, got the string {accept!r}. Pass accept=[{accept!r}]."
        )


def _check_audits(every: int | None, lanes: int | None) -> None:
    if every is None:
        return
    if not isinstance(every, int) or every < 1:
        raise UsageError(f"audit_every must be 1 step or more, got {every!r}. Leave it out for no audits.")
    if lanes is None:
        raise UsageError(
            "audit_every needs lanes=: without it a step that is audited would be summed in another order. "
            "Pass lanes= to Run, the number of processes or more."
        )


def _require_no_snapshots(folder: Path) -> None:
    found = sorted(path.name for path in folder.glob("snapshots/step-*/"))
    if found:
        raise TruestepError(
            f"{folder / 'run.json'} is missing beside snapshots (the newest is {found[-1]}). "
            f"The run would start over at step 0 and replace them. Restore run.json, for example from a "
            f"backup, or give this run a new folder."
        )


def _identify(folder: Path) -> str:
    """Return the run's id, made when the folder is used for the first time."""
    path = folder / "run.json"
    if not path.exists():
        _require_no_snapshots(folder)
        fields = {"format": "truestep-run", "version": 1, "id": uuid.uuid4().hex}
        with runfiles.explained(path), runfiles.replacing(path) as file:
            file.write(json.dumps(fields).encode() + b"\n")
    try:
        return str(plainfile.read_json(path)["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TruestepError(
            f"{path} is damaged ({error}). Give this run a new folder, or restore that file."
        ) from error
