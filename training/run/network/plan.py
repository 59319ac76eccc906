"""What a time has room for: which part of the network trains, and for how many epochs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from index.errors import InputError
from training.options.network import PLANNED, WHOLE, NetworkConfig

ENOUGH_EPOCHS, MOST_EPOCHS = 6, 20
RESERVE = 0.1  # of the time, for what a measurement of seconds cannot foresee
DEPTHS = (None, 8, 4, 2, 1)  # last blocks that are tried; None is all
_SMALLER, _STEP = 0.7, 8  # of the crop's side; pixels


class NoTimeError(InputError):
    """What was asked for does not fit the time that there is."""


def name_depth(last: int | None) -> str:
    """As `--unfreeze` has it, from the number of blocks at the end of the network; None is all of them."""
    return WHOLE if last is None else f"last-{last}"


def list_depths(network: NetworkConfig, *, blocks: int) -> list[int | None]:
    """Those that the options leave open, the deepest first.

    Args:
        blocks: that the network has.
    """
    if network.unfreeze != PLANNED:
        return [network.last_blocks]
    return [depth for depth in DEPTHS if depth is None or depth < blocks]


def smaller_side(crop: int) -> int | None:
    """Of views at half the cost, in steps that networks divide evenly; None where the crop is too small."""
    side = _STEP * round(_SMALLER * crop / _STEP)
    return side if 0 < side < crop else None


@dataclass(frozen=True, slots=True)
class DepthCosts:
    """Seconds of a depth, as measured and counted.

    Attributes:
        epoch: the steps of one on new views.
        kept_epoch, keeping: the steps of one on views that are kept, and to keep all of these once; None and 0 where
            there are none.
        once: to keep what judging takes, and the judgements before the first and after the last epoch.
        judging: of what is held out, after an epoch.
        believing: of all labels anew, beside that.
    """

    epoch: float
    kept_epoch: float | None = None
    keeping: float = 0.0
    once: float = 0.0
    judging: float = 0.0
    believing: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the whole stage by depth and epochs.

    Attributes:
        once: what any plan takes: what has passed, decoding, heads in closed form.
        judge_every: epochs from one judgement to the next.
        believes: whether labels are judged anew.
        views: of an image that are kept, where they are.
        depths: the most wanted first.
    """

    once: float
    judge_every: int
    believes: bool
    views: int
    depths: Mapping[int | None, DepthCosts]

    def total(self, depth: int | None, epochs: int) -> float:
        """Labels are not judged anew after the last epoch."""
        of = self.depths[depth]
        steps = epochs * of.epoch
        if of.kept_epoch is not None and epochs > self.views:
            steps = of.keeping + epochs * of.kept_epoch
        judged = -(-epochs // self.judge_every) * of.judging
        believed = (epochs - 1) // self.judge_every * of.believing if self.believes else 0.0
        return self.once + of.once + steps + judged + believed

    def fitting(self, depth: int | None, seconds: float) -> int:
        """The most epochs in this time, up to `MOST_EPOCHS`."""
        return max((n for n in range(1, MOST_EPOCHS + 1) if self.total(depth, n) <= seconds), default=0)

    def has_time(self, depth: int | None, *, budget_s: float, epochs: int | None) -> bool:
        """Whether as many epochs fit as are wanted: those asked for, or `ENOUGH_EPOCHS`."""
        return self.total(depth, epochs or ENOUGH_EPOCHS) <= (1 - RESERVE) * budget_s


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """What will be done, and how long it is to take.

    Attributes:
        seconds: of the whole network stage with all epochs.
        epoch_seconds: of one of them with its share of keeping views and of judging.
        budget_s: what there is.
    """

    last: int | None
    epochs: int
    seconds: float
    epoch_seconds: float
    budget_s: float

    def settle(self, network: NetworkConfig) -> NetworkConfig:
        """The options as planned."""
        return replace(network, unfreeze=name_depth(self.last), network_epochs=self.epochs)

    def report(self, *, epochs: int, seconds: float | None) -> dict[str, Any]:
        """For the run's report: planned beside measured, for the epochs that there were.

        Args:
            epochs: that trained; fewer than planned where patience ended.
            seconds: measured; None where the stage was interrupted.
        """
        return {
            "unfreeze": name_depth(self.last),
            "epochs": self.epochs,
            "budget_seconds": self.budget_s,
            "planned_seconds": self.seconds,
            "planned_for_these_epochs": self.seconds - (self.epochs - epochs) * self.epoch_seconds,
            "measured_seconds": seconds,
        }


def choose_plan(costs: Costs, *, budget_s: float, epochs: int | None) -> NetworkPlan:
    """The most wanted depth with time for the epochs, or for `ENOUGH_EPOCHS` and as many more as fit.

    Where none has time for so many it is the cheapest, with those that fit.

    Args:
        epochs: that the user asked for; None leaves them open.

    Raises:
        NoTimeError: not even one epoch of the cheapest fits, or not as many as asked for; it says what would.
    """
    seconds = (1 - RESERVE) * budget_s
    for depth in costs.depths:
        if costs.has_time(depth, budget_s=budget_s, epochs=epochs):
            return _plan(costs, depth, epochs or costs.fitting(depth, seconds), budget_s=budget_s)
    cheapest = min(costs.depths, key=lambda depth: costs.total(depth, 1))
    if epochs is None and (fitting := costs.fitting(cheapest, seconds)):
        return _plan(costs, cheapest, fitting, budget_s=budget_s)
    least = epochs or 1
    needed = costs.total(cheapest, least) / (1 - RESERVE)
    raise NoTimeError(
        f"--time-budget {describe_time(budget_s)} is too short for {describe_epochs(least)} of --unfreeze "
        f"{name_depth(cheapest)}: on this machine that needs {describe_time(needed)}. Start another run with "
        f"--time-budget {math.ceil(needed / 60)}m{_cheaper_ways(cheapest, epochs)}; its features are kept in --cache"
    )


def describe_plan(plan: NetworkPlan, *, side: int) -> str:
    """In plain words, before anything trains on views of `side` pixels."""
    what = "the whole network" if plan.last is None else f"its last {plan.last} blocks"
    what = "its last block" if plan.last == 1 else what
    beside = plan.seconds - plan.epochs * plan.epoch_seconds
    return (
        f"network: will train {what} on views of {side} pixels for {describe_epochs(plan.epochs)}, "
        f"{describe_time(plan.epoch_seconds)} each, and {describe_time(beside)} for measuring, decoding and choosing: "
        f"{describe_time(plan.seconds)} in all, of the {describe_time(plan.budget_s)} of --time-budget"
    )


def describe_epochs(count: int) -> str:
    """`1 epoch`, `6 epochs`."""
    return f"{count} epoch{'' if count == 1 else 's'}"


def describe_time(seconds: float) -> str:
    """`45 s`, `12.5 min`."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.3g} min"


def _plan(costs: Costs, depth: int | None, epochs: int, *, budget_s: float) -> NetworkPlan:
    total = costs.total(depth, epochs)
    return NetworkPlan(depth, epochs, total, (total - costs.once - costs.depths[depth].once) / epochs, budget_s)


def _cheaper_ways(depth: int | None, epochs: int | None) -> str:
    ways: Iterator[str] = (
        way
        for way, helps in (
            ("fewer --network-epochs", (epochs or 0) > 1),
            ("a smaller --unfreeze", depth != 1),
        )
        if helps
    )
    return "".join(f", {way}" for way in ways) + ", or fewer images with --max-per-class"
