"""`retrieval train`."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from index.commands.console import PATH, config_options, emit, help_all_option, output_options
from index.commands.option_files import FILE, OptionFileCommand, config_file_option, name_setting
from index.config_fields import option_names
from index.errors import InputError
from index.text import printable_path
from training.options.config import USUAL_DIM, TrainConfig
from training.options.losses import option_groups
from training.options.machine import Machine
from training.options.resolve import DEFAULT, RECIPES, resolve
from training.public import train as run_training

_OF_RUN = ("out", "val", "resume", "rank_timeout")


class TrainCommand(OptionFileCommand):
    """`--help` shows the common options, with the values of the default recipe and of spa-paper where they differ."""

    common = frozenset(
        {"out", "val", "resume", "config_file", "as_json", "help_all", "weights", "backbone", "method"}
        | {"view", "for_", "embedding_dim", "frozen", "finetune", "epochs", "time_budget", "copy_head"}
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = {option.name: option for option in self.settings()}
        for name, value in DEFAULT.items():
            paper = "" if settings[name].default is None else f"; spa-paper: {settings[name].default}"
            settings[name].show_default = f"{'by holdout evaluation' if value is None else value}{paper}"
        width, weights = settings["embedding_dim"], settings["weights"]
        width.show_default = f"{USUAL_DIM} or as many as images and backbone allow; spa-paper: {width.default}"
        weights.required = False
        weights.show_default = "of the built-in model"
        settings["backbone"].show_default = f"builtin; with --weights: {settings['backbone'].default}"
        of_training = {"recipe", *option_names(TrainConfig, *option_groups())}
        names = [name_setting(option) for option in settings.values() if option.name not in of_training]
        self.not_in_file = {
            name: f"it belongs to the run, not to its training: give --{name} on the command line" for name in names
        }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(word.startswith(("--nproc", "--nnodes")) for word in args):
            ctx.fail("the number of processes is an option of torchrun: torchrun --nproc-per-node N -m training ...")
        return super().parse_args(ctx, args)


@click.command(cls=TrainCommand)
@click.argument("data", type=PATH)
@click.option("--out", required=True, type=PATH, metavar="RUN", help="Run folder to write.")
@click.option("--val", type=PATH, help="Labelled images for evaluation (with --protocol: its test part unless given).")
@click.option(
    "--recipe",
    type=click.Choice(RECIPES),
    default="default",
    show_default=True,
    help="Default values: those of docs/recipe.md, or those of the Smooth Proxy-Anchor (SPA) paper.",
)
@config_options(TrainConfig, *option_groups(), Machine)
@click.option("--resume", is_flag=True, help="Continue an interrupted RUN.")
@click.option(
    "--rank-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="With torchrun: timeout for the other processes in a step.",
)
@config_file_option("embedding-dim = 128", before="the command line overrides it")
@output_options
@help_all_option
def train(data: Path, as_json: bool, **options: Any) -> None:
    """Train an image embedding on labelled photos, some with wrong labels.

    DATA is a folder of class folders, a CSV or Parquet file with the columns path and label, a gallery (labels as
    decided, without images that are dropped or set aside), or a benchmark (--protocol). A classifier estimates the
    confidence of each label from the other images. A head on the frozen backbone is trained with these weights, and
    compared with untrained embeddings: on new photos of these classes and on new classes, from --val or held out of
    the data. Then the backbone is fine-tuned, for at most ten minutes on a CPU, which do not count the steps
    before, and exported unless it finds fewer of held-out images. Ctrl-C ends fine-tuning early and keeps the
    weights so far. --frozen leaves the backbone as it is.

    \b
    Examples:
      retrieval train photos/ --out run
      retrieval train photos/ --weights imagenet --out run --val test/
      retrieval train photos/ --weights imagenet --out run --time-budget 1h
      retrieval train photos/ --weights imagenet --out run --frozen
      retrieval train photos-gallery --weights imagenet --out run-cleaned
    """
    context = click.get_current_context()
    of_run = {name: options.pop(name) for name in (*_OF_RUN, *option_names(Machine))}
    given = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    try:
        config = resolve(**given)
    except InputError as error:
        also = f" (with the options of {printable_path(str(context.meta[FILE]))})" if FILE in context.meta else ""
        raise click.UsageError(f"{error}{also}", ctx=context) from error
    from training.run.display import watch_training
    from training.run.distributed import AnotherFailedError, ProcessRank
    from training.run.report_text import format_report

    is_first = ProcessRank.read().rank == 0
    try:
        with watch_training(shown=is_first) as watcher:
            report = run_training(data, config=config, watcher=watcher, **of_run)
    except AnotherFailedError:  # and has said why
        context.exit(1)
    if is_first:
        emit(report, as_json=as_json, text=format_report(report, config=config))
