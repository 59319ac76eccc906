"""Options: every wrong value is refused with its flag and what was given."""

from __future__ import annotations

import math
from inspect import get_annotations
from typing import Any

import pytest

from index.errors import InputError
from tests.training.conftest import make_config
from training.options.backbone_libraries import preprocess_for
from training.options.config import (
    NOISE_KINDS,
    ConfidenceConfig,
    DataConfig,
    EmbeddingConfig,
    InputConfig,
    LabelNoise,
    SelectConfig,
    TrainConfig,
)
from training.options.losses import (
    LOSSES,
    RIVALS,
    LossConfig,
    MultiSimilarityOptions,
    ProcSimOptions,
    SpaOptions,
    option_groups,
    options_of,
)
from training.options.network import NetworkConfig
from training.options.resolve import RECIPES, resolve

WRONG = [
    ("max_per_class", 1, "--max-per-class"),
    ("label_noise", "uniform", "--label-noise"),
    ("label_noise", "uniform:1.5", "--label-noise"),
    ("label_noise", "uniform:-0.1", "--label-noise"),
    ("label_noise", "semantic:0.5", "--label-noise"),
    ("label_noise", "0.5", "--label-noise"),
    ("label_noise", "triplet:0.5", "--label-noise"),
    ("label_noise", "bernoulli:1.01", "--label-noise"),
    ("label_noise", "nearest-class:", "--label-noise"),
    ("hierarchy", "tree.csv", "--hierarchy"),
    ("resize", 0, "--resize"),
    ("crop", 0, "--crop"),
    ("crop", 41, "--crop"),
    ("features", "cached", "--features"),
    ("features", "cached:0", "--features"),
    ("features", "disk", "--features"),
    ("confidence_epochs", 0, "--confidence-epochs"),
    ("confidence_hidden", 0, "--confidence-hidden"),
    ("confidence_lr", 0.0, "--confidence-lr"),
    ("patience", 0, "--patience"),
    ("holdout", -0.1, "--holdout"),
    ("holdout", 0.6, "--holdout"),
    ("holdout", math.nan, "--holdout"),
    ("min_confidence", 0.0, "--min-confidence"),
    ("min_confidence", 1.0, "--min-confidence"),
    ("min_confidence", math.nan, "--min-confidence"),
    ("kappa", -1.0, "--kappa"),
    ("nca_scale", -0.1, "--nca-scale"),
    ("ms_alpha", 0.0, "--ms-alpha"),
    ("ms_beta", -1.0, "--ms-beta"),
    ("ms_base", 1.1, "--ms-base"),
    ("ms_base", -1.1, "--ms-base"),
    ("ms_base", math.nan, "--ms-base"),
    ("ms_epsilon", -0.1, "--ms-epsilon"),
    ("procsim_lambda", 0.0, "--procsim-lambda"),
    ("procsim_scale", 0.0, "--procsim-scale"),
    ("procsim_proxy_lr", math.inf, "--procsim-proxy-lr"),
    ("omega", -0.5, "--omega"),
    ("superloss_lambda", 0.0, "--superloss-lambda"),
    ("positive_margin", -0.1, "--positive-margin"),
    ("negative_margin", math.nan, "--negative-margin"),
    ("alpha", 0.0, "--alpha"),
    ("alpha", math.nan, "--alpha"),
    ("beta", math.inf, "--beta"),
    ("beta", -1.0, "--beta"),
    ("delta", -0.1, "--delta"),
    ("lambda_", 0.0, "--lambda"),
    ("lambda_", 1.0, "--lambda"),
    ("embedding_dim", 0, "--embedding-dim"),
    ("epochs", 0, "--epochs"),
    ("batch_size", 1, "--batch-size"),
    ("lr", 0.0, "--lr"),
    ("lr", math.inf, "--lr"),
    ("proxy_lr", -1.0, "--proxy-lr"),
    ("weight_decay", -1e-4, "--weight-decay"),
    ("seed", -1, "--seed"),
    ("seed", 2**32, "--seed"),
    ("validate_every", 0, "--validate-every"),
    ("recipe", "mine", "--recipe"),
]


@pytest.mark.parametrize(("field", "value", "flag"), WRONG)
def test_a_wrong_value_is_named_with_its_flag(field: str, value: object, flag: str) -> None:
    takers = [name for name in LOSSES if field in options_of(name).__dataclass_fields__]
    with pytest.raises(InputError) as caught:
        make_config(method=takers[0] if takers else "spa", **{field: value})
    assert flag in str(caught.value).replace("(", " ").split()
    assert str(value) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "procsim", "omega": 0.5}, "--omega above 0 and --guidance FILE go together"),
        (
            {"label_noise": "semantic:0.5"},
            "--label-noise semantic:0.5 needs a class hierarchy: add --hierarchy FILE",
        ),
        (
            {"label_noise": "uniform:0.5", "hierarchy": "/t.csv"},
            "--hierarchy /t.csv goes with --label-noise semantic:P, got --label-noise uniform:0.5",
        ),
        ({"method": "adaptive-proxy-anchor", "delta": 0.0}, "--delta must be greater than 0, where .*, got 0.0"),
        *(
            (
                {"method": method, "min_confidence": 0.1},
                f"--min-confidence goes with a method that trains, not with --method {method}",
            )
            for method in RIVALS
        ),
    ],
)
def test_options_that_do_not_go_together_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_config(**changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "spam"}, "--method must be one of spa, .*, got 'spam'"),
        (
            {"method": "adaptive-proxy-anchor", "margins": "many"},
            "--margins must be one of single, .*, got 'many'",
        ),
        (
            {"method": "procsim", "procsim_threshold": "median"},
            "--procsim-threshold must be one of otsu, .*'median'",
        ),
        ({"protocol": "cub"}, "--protocol must be one of folder, .*, got 'cub'"),
        ({"guidance": "words.npz"}, "--guidance goes with --method procsim, not with --method spa"),
        ({"method": "procsim", "guidance": "words.npz"}, "--omega above 0 and --guidance FILE go together"),
    ],
)
def test_a_choice_that_is_none_is_refused_from_python_too(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_config(**options)


def test_options_that_do_go_together_are_taken() -> None:
    options = make_config(method="procsim", omega=0.5, guidance="/words.npz").loss.options
    assert (options.omega, options.guidance) == (0.5, "/words.npz")
    make_config(label_noise="semantic:0.5", hierarchy="tree.csv")
    make_config(method="proxy-anchor", delta=0.0)
    make_config(method="proxy-anchor", min_confidence=0.1)


def test_no_two_options_share_a_name() -> None:
    concerns = (EmbeddingConfig, ConfidenceConfig, SelectConfig, DataConfig, InputConfig, NetworkConfig)
    kinds = (TrainConfig, LossConfig, *concerns)
    names = [name for kind in (*kinds, *option_groups()) for name in get_annotations(kind)]
    assert len(names) == len(set(names)), "a run's config.json is compared by name when it is resumed"


def test_the_defaults_are_the_papers() -> None:
    assert [resolve(recipe, weights="none").embedding.width for recipe in RECIPES] == [512, 64]
    embedding, confidence, images = EmbeddingConfig(), ConfidenceConfig(), InputConfig()
    spa = SpaOptions()
    assert LossConfig() == LossConfig("spa", spa)
    assert (spa.alpha, spa.delta, spa.lambda_, spa.beta, spa.negative_normalisation) == (32, 0.1, 0.1, 100, "all")
    assert (embedding.embedding_dim, embedding.batch_size, embedding.epochs) == (64, 150, 40)
    assert (embedding.lr, embedding.proxy_lr, embedding.weight_decay) == (1e-4, 1e-2, 1e-4)
    assert (confidence.confidence_hidden, confidence.confidence_lr) == (512, 1e-4)
    assert (images.resize, images.crop, images.cached_views) == (256, 224, 1)
    pairs, procsim = MultiSimilarityOptions(), ProcSimOptions()
    assert (pairs.ms_alpha, pairs.ms_beta, pairs.ms_base, pairs.ms_epsilon) == (2, 50, 0.5, 0.1)
    assert (procsim.procsim_base, procsim.procsim_threshold) == ("multi-similarity", "otsu")
    assert confidence.min_confidence is None


@pytest.mark.parametrize("kind", NOISE_KINDS)
@pytest.mark.parametrize(("text", "rate"), [("0", 0), (".5", 0.5), ("1", 1)])
def test_kind_and_rate_of_the_noise_are_read_from_their_option(kind: str, text: str, rate: float) -> None:
    hierarchy = "tree.csv" if kind == "semantic" else None
    config = DataConfig(label_noise=f"{kind}:{text}", hierarchy=hierarchy)
    assert config.noise == LabelNoise(kind, rate)


@pytest.mark.parametrize(("text", "views"), [("cached:1", 1), ("cached:12", 12), ("live", None)])
def test_the_number_of_views_is_read_from_the_features_option(text: str, views: int | None) -> None:
    assert InputConfig(features=text).cached_views == views


@pytest.mark.parametrize(
    ("view", "given", "sizes"),
    [
        ("crop", {}, (256, 224)),
        ("whole", {}, (224, 224)),
        ("whole", {"crop": 160}, (160, 160)),
        ("whole", {"resize": 224}, (224, 224)),
        ("both", {}, (256, 224)),
        ("both", {"resize": 320}, (320, 224)),
    ],
)
def test_the_whole_image_has_the_size_of_the_crop(
    view: str, given: dict[str, int], sizes: tuple[int, int]
) -> None:
    images = resolve(weights="none", view=view, **given).input
    assert (images.resize, images.crop) == sizes
    seen = preprocess_for("resnet50", resize=images.resize, crop=images.crop, view=view)
    assert seen.resize == images.resize
    assert seen.crop == (images.resize if view == "both" else images.crop)


@pytest.mark.parametrize(
    ("given", "view", "pooling"),
    [
        ({}, "auto", "auto"),
        ({"features": "cached:1", "select": "trained", "epochs": 3}, "auto", "auto"),
        ({"view": "whole"}, "whole", "auto"),
        ({"pooling": "gem"}, "auto", "gem"),
        ({"embedding_cost": 2}, "auto", "auto"),
        ({"recipe": "paper"}, "crop", "own"),
        ({"method": "proxy-nca"}, "crop", "own"),
        ({"method": "pca"}, "crop", "own"),
        ({"trial": False}, "crop", "own"),
        ({"features": "live"}, "crop", "own"),
        ({"features": "cached:4"}, "crop", "own"),
        ({"unfreeze": "last-2"}, "crop", "own"),
        ({"method": "procsim", "omega": 1.0, "guidance": "words.npz"}, "crop", "own"),
        ({"method": "pca", "view": "auto"}, "auto", "own"),
        ({"method": "multi-similarity", "pooling": "auto"}, "crop", "auto"),
        ({"features": "live", "pooling": "auto"}, "crop", "auto"),
        ({"recipe": "paper", "view": "auto"}, "auto", "own"),
    ],
)
def test_a_look_chooses_what_is_not_given_where_the_default_recipe_has_its_trial(
    given: dict[str, Any], view: str, pooling: str
) -> None:
    images = resolve(weights="none", **given).input
    assert (images.view, images.pooling) == (view, pooling)
    assert images.is_open == ("auto" in (view, pooling))
    assert images.resize == (224 if view == "whole" else 256)
    settled = images.settle(view="whole", pooling="gem") if view == "auto" else images
    assert settled.resize == (224 if settled.view == "whole" else 256)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "half"}, "--view must be one of crop, whole, both, auto, got 'half'"),
        ({"pooling": "max"}, "--pooling must be one of own, gem, layers, auto, got 'max'"),
        (
            {"view": "whole", "resize": 256},
            r"--view whole .* --crop \(224\) .* got --resize 256: leave --resize out",
        ),
        ({"view": "whole", "resize": 192}, r"--view whole .* got --resize 192"),
        ({"view": "both", "resize": 224}, r"--view both .* raise --resize, or choose --view whole"),
        ({"view": "both", "resize": 200}, r"--crop \(224\) must not exceed --resize \(200\)"),
        ({"view": "whole", "features": "live"}, "--features live takes random crops, which go with --view crop"),
        ({"view": "both", "features": "cached:3"}, "--features cached:3 .* not with --view both"),
        ({"view": "auto", "features": "live"}, "--features live .* not with --view auto"),
        ({"view": "auto", "trial": False}, "--view auto is chosen on a part of the data, .* leave out --no-trial"),
        ({"pooling": "auto", "trial": False}, "--pooling auto is chosen on a part of the data"),
        ({"view": "both", "embedding_cost": 2}, "--embedding-cost goes with --view auto"),
        ({"embedding_cost": 0}, "--embedding-cost must be at least 1"),
    ],
)
def test_sizes_and_crops_that_do_not_go_with_the_view_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve(weights="none", **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images_per_class": 9, "batch_size": 8}, r"--images-per-class \(9\) must not exceed --batch-size \(8\)"),
        ({"hold": 0.1}, "--hold keeps a whitened head near its start, got --start random"),
        ({"select": "auto"}, "--select auto reads the trial: leave out --no-trial"),
        (
            {"select": "auto", "trial": True, "method": "pca"},
            "--select goes with a method that trains, not with --method pca",
        ),
        (
            {"select": "auto", "trial": True, "method": "procsim", "omega": 0.5, "guidance": "words.npz"},
            "--select auto reads the trial, and there is none with --guidance",
        ),
        (
            {"sample_weights": "confidence"},
            "--sample-weights goes with .* multi-similarity, not with --method spa",
        ),
        ({"start": "pca"}, "--start must be one of random, whitened, got 'pca'"),
        ({"confidences": "nobody"}, "--confidences must be one of module, leave-one-out, got 'nobody'"),
        ({"select": "best"}, "--select must be one of trained, auto, got 'best'"),
        ({"steps": 0}, "--steps must be at least 1, got 0"),
        ({"start": "whitened", "hold": -0.1}, "--hold must be at least 0, got -0.1"),
        ({"start": "whitened", "hold": math.nan}, "--hold must be at least 0, got nan"),
        ({"start": "whitened", "hold": math.inf}, "--hold must be at least 0, got inf"),
    ],
)
def test_options_of_the_start_and_of_the_trial_are_refused_by_name(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make_config(**changes)


def test_a_whitened_start_may_be_held_or_not_and_steps_may_be_left_out() -> None:
    assert make_config(start="whitened", hold=0.5).embedding.hold == 0.5
    assert make_config(start="whitened").embedding.hold == 0
    assert (make_config().embedding.steps, make_config(steps=7).embedding.steps) == (None, 7)
    assert make_config(select="auto", trial=True).selection.select == "auto"


UNUSED = [
    ({"method": "proxy-nca", "alpha": 8.0}, "--alpha goes with --method spa, proxy-anchor, adaptive-proxy-anchor, not"),
    ({"method": "triplet", "sample_weights": "none"}, "--sample-weights goes with --method proxy-nca, multi"),
    ({"method": "adaptive-proxy-anchor", "margin_of": "sample"}, "--margin-of goes with --margins per-class"),
    ({"method": "procsim", "nca_scale": 4.0}, "--nca-scale goes with --procsim-base proxy-nca"),
    ({"method": "procsim", "proxy_lr": 0.1}, "--proxy-lr goes with --procsim-base proxy-nca"),
    ({"method": "procsim", "procsim_base": "proxy-nca", "ms_base": 0.1}, "--ms-base goes with --procsim-base multi"),
    ({"method": "superloss", "proxy_lr": 0.1}, "--proxy-lr goes with a loss with proxies, not with --method superloss"),
    ({"method": "proxy-anchor", "confidences": "leave-one-out"}, "--confidences goes with what reads confidences"),
    ({"method": "proxy-anchor", "holdout": 0.2}, "--holdout goes with what reads confidences"),
    ({"confidences": "leave-one-out", "confidence_lr": 0.1}, "--confidence-lr goes with --confidences module"),
    ({"holdout": 0.0, "patience": 3}, "--patience goes with --holdout above 0"),
    *(
        ({"method": method, **options}, f"{flag} goes with a method that trains, not with --method {method}")
        for method in RIVALS
        for flag, options in {
            "--lr": {"lr": 0.1}, "--start": {"start": "random"}, "--holdout": {"holdout": 0.2},
            "--features": {"features": "live"}, "--validate-every": {"validate_every": 3}, "--trial": {"trial": True},
        }.items()
    ),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), UNUSED)
def test_an_option_that_would_do_nothing_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve("paper", weights="none", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epocs": 3}, "there is no option epocs; did you mean epochs"),
        ({"alpha": "4", "method": "spa"}, "--alpha must be a number, got '4'"),
        ({"batch_size": 2.5}, "--batch-size must be a whole number, got 2.5"),
        ({"embedding_dim": True}, "--embedding-dim must be a whole number, got True"),
        ({"trial": "no"}, "--trial must be true or false, got 'no'"),
        ({"weights": 3}, "--weights must be text, got 3"),
        ({"recipe": "mine"}, "--recipe must be one of default, paper, got 'mine'"),
    ],
)
def test_what_no_command_line_could_say_is_refused_in_its_words(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve(**{"weights": "none", **options})
