"""`retrieval train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from index.commands.console import GroupedCommand, config_options, emit, help_all_option, output_options
from index.errors import InputError
from index.model.backends.names import AUTO
from index.text import printable_path
from index.threads import usable_cores
from index.toml_options import read_toml_options
from training.options.config import USUAL_DIM, TrainConfig
from training.options.log_targets import FORMS, parse_log_targets
from training.options.losses import option_groups
from training.options.machine import RUNTIMES
from training.options.resolve import DEFAULT, FILES, RECIPES, WEIGHTS, resolve
from training.public import default_cache, train_resolved

_OF_THE_COMMAND = (
    "out",
    "val",
    "cache",
    "device",
    "precision",
    "workers",
    "resume",
    "rank_timeout",
    "json",
    "log",
)


def read_options(path: Path) -> dict[str, Any]:
    """Options by their names in Python, from `embedding-dim = 128` or `embedding_dim = 128`.

    Files that they name are looked for beside the file, unless their paths are absolute. What an option takes is left
    to `resolve`.
    """
    options: dict[str, Any] = {}
    for key, value in read_toml_options(path, example="embedding-dim = 128").items():
        name = _name_of(key)
        if name in _OF_THE_COMMAND:
            raise InputError(
                f"{printable_path(str(path))}: {key} is of the run, not of its training: give --{key} on the command "
                "line"
            )
        is_file = name in FILES and isinstance(value, str) and value not in WEIGHTS
        options[name] = str(path.parent / value) if is_file else value
    return options


def _name_of(key: str) -> str:
    name = key.replace("-", "_")
    return "lambda_" if name == "lambda" else name


class TrainCommand(GroupedCommand):
    """`--help` shows what most trainings need, with the default recipe's values, and the paper's where they differ."""

    common = frozenset({
        "out", "val", "config_file", "recipe", "cache", "device", "workers", "resume", "as_json", "help_all",
        "weights", "backbone", "seed", "method", "embedding_dim", "min_confidence", "select", "protocol",
        "max_per_class", "label_noise", "crop", "view", "pooling", "unfreeze", "network_epochs",
        "time_budget", "copies", "path_column", "label_column", "split_column", "log",
    })  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for param in self.params:
            if isinstance(param, click.Option) and param.name in DEFAULT:
                paper = "" if param.default is None else f"; paper: {param.default}"
                usual = DEFAULT[param.name]
                param.show_default = f"{'the trial chooses' if usual is None else usual}{paper}"
            if isinstance(param, click.Option) and param.name == "embedding_dim":
                param.show_default = (
                    f"{USUAL_DIM}, less where images or backbone allow no more; paper: {param.default}"
                )
            if isinstance(param, click.Option) and param.name == "weights":
                param.required = False
                param.show_default = "without a --backbone the one that comes with the package"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name.startswith(("--nproc", "--nnodes")):
                raise click.UsageError(
                    f"{error.option_name} is an option of torchrun, which starts the processes: "
                    "torchrun --nproc-per-node N -m training ...", ctx=ctx,
                ) from error  # fmt: skip
            raise


@click.command(cls=TrainCommand, short_help="Train an embedding on labelled images.")
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="RUN", help="Run folder to write.")
@click.option(
    "--val",
    type=click.Path(path_type=Path),
    help="Other labelled images, for Recall@K in the report (with --protocol: its test part unless given).",
)
@click.option(
    "--recipe", type=click.Choice(RECIPES), default="default", show_default=True,
    help="Where defaults come from: what held-out classes and images chose, or the Smooth Proxy-Anchor paper.",
)  # fmt: skip
@config_options(TrainConfig, *option_groups())
@click.option(
    "--cache", type=click.Path(path_type=Path), default=default_cache, show_default="your cache folder",
    help="Folder of backbone features, shared by runs.",
)  # fmt: skip
@click.option(
    "--device",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "cpu", "cuda"]),
    help="Where to compute.",
)
@click.option(
    "--precision", default="auto", show_default=True, type=click.Choice(["auto", "float32", "bfloat16"]),
    help="Of the backbone pass; auto takes bfloat16 where the hardware computes it.",
)  # fmt: skip
@click.option(
    "--backend", default=AUTO, show_default=True, type=click.Choice(RUNTIMES),
    help="What computes a frozen backbone's features on a CPU; auto takes, where there are images "
    "enough, the first that is installed and agrees with torch.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(min=1), default=usable_cores, show_default="cores",
    help="Decoding threads.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on with an interrupted RUN.")
@click.option(
    "--rank-timeout", type=click.FloatRange(min=0, min_open=True), default=600, show_default=True,
    metavar="SECONDS", help="Started by torchrun: how long a step waits for the other processes.",
)  # fmt: skip
@click.option(
    "--log", multiple=True, metavar="KIND[:PLACE]",
    help=f"Watch the training elsewhere too, with the extra `loggers`: {FORMS}. May be given several times.",
)  # fmt: skip
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE.toml",
    help="Read options from this file, such as embedding-dim = 128; what the command line gives goes before.",
)  # fmt: skip
@output_options
@help_all_option
def train(
    data: Path, out: Path, val: Path | None, config_file: Path | None, cache: Path, device: str, precision: str,
    backend: str, workers: int, resume: bool, rank_timeout: float, log: tuple[str, ...], as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Train on DATA: a folder of class folders, a CSV or Parquet file with the columns path,label, or a --protocol.

    Two phases on a frozen backbone: a classifier that never sees the image it judges says which labels to believe,
    then the embedding is trained with these confidences. Wrong labels are expected; nothing needs to be cleaned first.
    --recipe paper trains Smooth Proxy-Anchor as its paper does, --method chooses among many others. A trial on classes
    and images held out tells whether training is worth it on your data, how firmly the head is held near its start, and
    which embedding ships: --select trained takes the trained one whatever it says. --unfreeze goes on to train the
    network itself, or its last blocks, and ships that where it finds more of what it held out.

    \b
    Examples:
      retrieval train photos/ --out run
      retrieval train photos/ --weights imagenet --out run
      retrieval train labels.csv --weights mobilenet.safetensors --backbone mobilenet_v2 --out run --val test/
      retrieval train photos/ --weights imagenet --out run --select trained
      retrieval train photos/ --weights imagenet --out run --unfreeze last-4 --time-budget 10m
      retrieval train photos/ --config mine.toml --out run
      retrieval train photos/ --weights imagenet --out run --method multi-similarity --min-confidence 0.1
      retrieval train CUB_200_2011/ --protocol cub-200-2011 --weights imagenet --out run --embedding-dim 64
      retrieval train photos/ --weights imagenet --out run --resume
      retrieval train photos/ --out run --log tensorboard:logs
      torchrun --nproc-per-node 8 -m training photos/ --weights imagenet --out run --unfreeze all
    """
    context = click.get_current_context()
    given = {} if config_file is None else read_options(config_file)
    given |= {
        name: value for name, value in options.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }  # fmt: skip
    try:
        config = resolve(**given)
        targets = parse_log_targets(log)
    except InputError as error:
        also = "" if config_file is None else f" (with the options of {printable_path(str(config_file))})"
        raise click.UsageError(f"{error}{also}", ctx=context) from error
    from training.run.display import watch_training
    from training.run.processes import AnotherFailedError, Place
    from training.run.report_text import format_report

    is_first = Place.read().rank == 0
    try:
        with watch_training(shown=is_first) as watcher:
            report = train_resolved(
                data, out, config=config, asked=given, val=val, resume=resume, cache=cache, device=device,
                precision=precision, backend=backend, workers=workers, watcher=watcher, rank_timeout=rank_timeout,
                targets=targets,
            )  # fmt: skip
    except AnotherFailedError:  # and has said why
        context.exit(1)
    if is_first:
        emit(report, as_json=as_json, text=format_report(report, config=config))
