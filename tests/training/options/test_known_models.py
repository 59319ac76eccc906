import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import mostly_slow
from training.backbone.backbones import load_backbone
from training.backbone.weights_files import fetch_weights
from training.options.backbone_libraries import find_library, preprocess_for
from training.options.known_models import COMMERCIAL, MEASURED, describe_licence, list_known_models

BY_NAME = {one.name: one for one in list_known_models()}
SMALL = ("builtin", "timm:mobilenetv4_conv_small.e2400_r224_in1k")
DOCS = Path(__file__).parents[3]


@pytest.mark.parametrize("name", [name for name in BY_NAME if name.startswith("timm:")])
def test_the_registry_of_timm_has_the_name_its_weights_and_the_licence(name: str) -> None:
    from training.backbone.timm_models import find_timm_config  # which takes seconds

    config = find_timm_config(find_library(name)[1])
    assert config.has_weights
    assert config.hf_hub_id == BY_NAME[name].card
    assert config.license == BY_NAME[name].licence.lower().replace(" ", "-")


@pytest.mark.parametrize("name", [name for name in BY_NAME if name.startswith("open_clip:")])
def test_the_registry_of_open_clip_has_the_name_with_its_weights_and_a_text_tower(name: str) -> None:
    import open_clip  # which takes seconds

    model, _, tag = find_library(name)[1].partition("/")
    assert open_clip.is_pretrained_cfg(model, tag)
    config: Any = open_clip.get_model_config(model)
    assert BY_NAME[name].has_text == ("hf_model_name" not in config["text_cfg"])
    assert BY_NAME[name].width == config["embed_dim"]


@pytest.mark.parametrize("name", mostly_slow(BY_NAME, fast=SMALL))
def test_width_size_and_parameters_are_those_of_the_model(name: str) -> None:
    known, made = BY_NAME[name], load_backbone(name, "pretrained" if name == "builtin" else "none")
    assert made.feature_dim == known.width
    assert preprocess_for(name).crop == known.side
    parameters = sum(tensor.numel() for tensor in made.network.parameters()) / 1e6
    assert parameters == pytest.approx(known.parameters, abs=0.006)


def test_measured_figures_are_those_of_the_page_of_results() -> None:
    assert MEASURED.keys() <= BY_NAME.keys()
    for measured in MEASURED.values():
        [page] = re.findall(r"docs/\S+\.md", measured)
        text = (DOCS / page).read_text()
        for figure, data in re.findall(r"([\d.]+) % on (\w+)", measured):
            assert re.search(rf"^\| {data} \| EfficientNet-Lite2 \| {re.escape(figure)} ", text, re.MULTILINE)


def test_the_licence_is_told_before_a_download(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="training.backbone")
    name = next(one.name for one in BY_NAME.values() if COMMERCIAL[one.licence] == "no")
    with fetch_weights(name):
        assert "commercial use: no" in caplog.text
    assert "resnet18" not in BY_NAME
    assert describe_licence("resnet18") == "licence not known here: see its model card"
