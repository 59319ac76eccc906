"""Options: what is read from them, and what is refused with its flag and what was given."""

import math
from inspect import get_annotations
from typing import Any

import pytest

from index.errors import InputError
from tests.training.conftest import make_config
from training.options.backbone_libraries import preprocess_for
from training.options.config import NOISE_KINDS, DataConfig, HeadConfig, InputConfig, LabelNoise, TrainConfig
from training.options.finetuning import FinetuneConfig, parse_time
from training.options.losses import LOSSES, RIVALS, LossConfig, SpaOptions, option_groups, options_of
from training.options.resolve import RECIPES, resolve, why_frozen

WRONG: list[tuple[str, Any]] = [
    ("max_per_class", 1),
    ("crop", 41),
    ("seed", 2**32),
    ("recipe", "mine"),
    *(
        ("label_noise", text)
        for text in ("uniform", "uniform:1.5", "uniform:-0.1", "semantic:0.5", "0.5", "triplet:0.5", "nearest-class:")
    ),
    ("confidence_val_share", math.nan),
    ("min_confidence", 1.0),
    ("ms_base", -1.1),
    ("lambda_", 1.0),
    ("delta", -0.1),
    ("ms_alpha", math.inf),
    ("prism_memory", 0),
    ("weight_decay", -1e-4),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_value_is_named_with_its_flag(field: str, value: object) -> None:
    takers = [name for name in LOSSES if field in options_of(name).__dataclass_fields__]
    with pytest.raises(InputError) as caught:
        make_config(method=takers[0] if takers else "spa", **{field: value})
    assert "--" + field.rstrip("_").replace("_", "-") in str(caught.value).replace("(", " ").split()
    assert str(value) in str(caught.value)


PAPER: dict[str, Any] = {"recipe": "spa-paper"}
ALL: dict[str, Any] = {"finetune": "all"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    # choices
    (PAPER | {"method": "spam"}, "--method must be one of spa, .*, got 'spam'"),
    # what no command line could say
    ({"epocs": 3}, r"epocs: no such option; did you mean epochs"),
    ({"alpha": "4", "method": "spa"}, "--alpha must be a number, got '4'"),
    # options that do not go together
    (PAPER | {"prism_rate": 0.5}, "--prism-rate goes with --method prism, not with --method spa"),
    (PAPER | {"method": "adaptive-proxy-anchor", "delta": 0.0}, "--delta must be greater than 0, as .*, got 0.0"),
    (
        PAPER | {"images_per_class": 9, "head_batch_size": 8},
        r"--images-per-class \(9\) must not exceed --head-batch-size \(8\)",
    ),
    (PAPER | {"l2_sp": 0.1}, "--l2-sp goes with --init wccn, got --init random"),
    ({"head_epochs": 2, "head_steps": 3}, "--head-epochs and --head-steps: give one of them"),
    (PAPER | {"select": "auto", "holdout": False}, "--select auto needs the holdout evaluation: leave out"),
    (PAPER | {"select": "auto", "holdout": True, "method": "pca"}, "--select goes with a method that trains, not with"),
    # sizes and crops that do not go with the view
    ({"view": "whole", "resize": 256}, r"--view whole .* --crop \(224\) .* got --resize 256: leave --resize out"),
    ({"view": "both", "resize": 224}, r"--view both .* raise --resize, or choose --view whole"),
    (ALL | {"image_size": 225}, r"--image-size must be at most --crop \(224\), got 225"),
    # options that would do nothing
    ({"copy_dim": 64}, "--copy-dim goes with --copy-head"),
    (PAPER | {"ms_beta": 40.0}, "--ms-beta goes with .* multi-similarity, .*not with --method spa"),
    (PAPER | {"method": "proxy-nca", "alpha": 8.0}, "--alpha goes with --method spa, proxy-anchor, adaptive-proxy"),
    (PAPER | {"method": "adaptive-proxy-anchor", "margin_of": "sample"}, "--margin-of goes with --margins per-class"),
    (PAPER | {"method": "prism", "nca_scale": 4.0}, "--nca-scale goes with --prism-base proxy-nca"),
    (PAPER | {"method": "multi-similarity", "proxy_lr": 0.1}, "--proxy-lr goes with a loss with proxies, not with"),
    (
        PAPER | {"method": "proxy-anchor", "confidence_val_share": 0.2},
        "--confidence-val-share goes with what reads confidences",
    ),
    (PAPER | {"confidences": "leave-one-out", "confidence_lr": 0.1}, "--confidence-lr goes with --confidences module"),
    *(
        (PAPER | {"method": method, "min_confidence": 0.1}, f"--min-confidence goes with a method .*{method}")
        for method in RIVALS
    ),
    *(
        (PAPER | {"method": "pca", name: value}, f"--{name.replace('_', '-')} goes with a method that trains, not with")
        for name, value in {"head_lr": 0.1, "init": "random", "confidence_val_share": 0.2, "holdout": True}.items()
    ),
    (ALL | {"method": "pca"}, "fine-tuning needs a loss, which --method pca lacks: leave its options out"),
    ({"method": "proxy-nca", "confidences": "module"}, "--targets posteriors are estimated by --confidences leave"),
    ({"lr": 1e-3, "frozen": True}, "--lr goes with fine-tuning, not with --frozen, and would do nothing here"),
    ({"time_budget": "10m", "frozen": True}, "--time-budget goes with fine-tuning, not with --frozen"),
    # the network
    *(
        ({"finetune": text}, f"--finetune must be last-N with N of at least 1, or all; got '{text}'")
        for text in ("last-0", "some", "none")
    ),
    *(
        ({"time_budget": text}, "--time-budget must be a time with its unit, such as 90s, 30m or 1.5h; got")
        for text in ("45", "0m", "-5m", "ten minutes")
    ),
    (ALL | {"wise_ft_alpha": 1.5}, "--wise-ft-alpha must be greater than 0 and at most 1, got 1.5"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_cannot_be_or_would_do_nothing_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve(**{"weights": "none", **options})


def test_no_two_options_share_a_name() -> None:
    concerns = (HeadConfig, DataConfig, InputConfig, FinetuneConfig)
    kinds = (TrainConfig, LossConfig, *concerns)
    names = [name for kind in (*kinds, *option_groups()) for name in get_annotations(kind)]
    assert len(names) == len(set(names)), "a run's config.json is compared by name when it is resumed"


def test_the_defaults_are_the_papers() -> None:
    assert [resolve(recipe, weights="none").head.width for recipe in RECIPES] == [512, 64]
    embedding, spa = HeadConfig(), SpaOptions()
    assert LossConfig() == LossConfig("spa", spa)
    assert (spa.alpha, spa.delta, spa.lambda_, spa.beta) == (32, 0.1, 0.1, 100)
    assert (embedding.head_batch_size, embedding.head_epochs) == (150, 40)
    assert (embedding.head_lr, embedding.proxy_lr) == (1e-4, 1e-2)


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_kind_and_rate_of_the_noise_are_read_from_their_option(kind: str) -> None:
    for text, rate in (("0", 0), (".5", 0.5), ("1", 1)):
        assert DataConfig(label_noise=f"{kind}:{text}").noise == LabelNoise(kind, rate)


@pytest.mark.parametrize(
    ("view", "given", "sizes"),
    [
        *(("crop", {}, (256, 224)), ("whole", {}, (224, 224)), ("whole", {"crop": 160}, (160, 160))),
        *(("whole", {"resize": 224}, (224, 224)), ("both", {"resize": 320}, (320, 224))),
    ],
)
def test_the_whole_image_has_the_size_of_the_crop(view: str, given: dict[str, int], sizes) -> None:
    images = resolve(weights="none", view=view, **given).input
    assert (images.resize, images.crop) == sizes
    seen = preprocess_for("resnet50", resize=images.resize, crop=images.crop, view=view)
    assert (seen.resize, seen.crop) == (images.resize, images.resize if view == "both" else images.crop)


def test_the_blocks_that_train_and_a_time_are_read() -> None:
    assert not FinetuneConfig(frozen=True).trains
    blocks = {None: 13, "all": None, "last-12": 12}
    assert {text: FinetuneConfig(finetune=text).last_blocks for text in blocks} == blocks
    for text, seconds in (("90s", 90), ("10m", 600), ("1.5h", 5400)):
        FinetuneConfig(time_budget=text)
        assert parse_time(text) == seconds
    for view in ("crop", "whole", "both"):
        assert resolve(weights="none", finetune="all", view=view, image_size=160).finetuning.image_size == 160


@pytest.mark.parametrize(
    ("given", "on_cpu", "limits"),
    [
        ({}, True, (10, "10m")),
        ({}, False, (10, None)),
        ({"batch_size": 640}, False, (100, None)),  # two steps an epoch
        ({"epochs": 3}, True, (3, None)),
        ({"time_budget": "1h"}, True, (None, "1h")),
        ({"time_budget": "1h", "epochs": 3}, False, (3, "1h")),
    ],
)
def test_fine_tuning_ends_with_its_epochs_or_its_time_on_a_cpu_with_the_first(given, on_cpu, limits) -> None:
    assert resolve(weights="none", **given).finetuning.limits(1280, on_cpu=on_cpu) == limits


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, None),
        ({"method": "spa"}, None),
        ({"frozen": True}, None),
        ({"method": "pca"}, "--method pca has no loss"),
        ({"recipe": "spa-paper"}, "--recipe spa-paper trains a head"),
        ({"recipe": "spa-paper", "finetune": "last-2"}, None),
    ],
)
def test_what_goes_with_a_head_alone_leaves_the_network_frozen_unless_fine_tuning_is_asked_for(given, reason) -> None:
    assert why_frozen(given) == reason
    assert resolve(weights="none", **given).finetuning.frozen == (reason is not None or "frozen" in given)


def test_head_and_network_train_with_one_loss_and_posteriors_by_default() -> None:
    plain, unfrozen = resolve(weights="none", frozen=True), resolve(weights="none")
    assert unfrozen.loss == plain.loss == LossConfig("spa", SpaOptions(head_alpha=4.0))
    assert (plain.reestimates_confidences, unfrozen.reestimates_confidences) == (False, True)
    assert (plain.loss.options.alpha, plain.loss.of_head.options.alpha) == (32, 4)
    assert resolve(weights="none", alpha=8.0).loss.of_head.options.alpha == 8
    nca = resolve(weights="none", method="proxy-nca")
    assert (nca.loss.options.targets, nca.reestimates_confidences) == ("posteriors", True)
    labels = resolve(weights="none", method="proxy-nca", targets="labels")
    assert (labels.loss.needs_confidences, labels.reestimates_confidences) == (False, False)
    paper = resolve("spa-paper", weights="none", finetune="all")
    assert (paper.loss, paper.reestimates_confidences) == (LossConfig("spa"), False)
