"""`retrieval info`: what a model or a gallery is, and what runs it here."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.commands.console import PATH, backend_option, emit, output_options
from index.commands.inspect_commands import info as gallery_info

if TYPE_CHECKING:
    from index.model.contract import ModelContract


@click.command(short_help="Say what a model or a gallery is, and what runs it here.")
@click.argument("what", type=PATH, metavar="MODEL|GALLERY|box")
@click.option("--runtime", is_flag=True, help="What runs its model here, how fast, in which precision, and why.")
@click.option("--again", is_flag=True, help="With --runtime: measure again what was measured before.")
@backend_option
@output_options
@click.pass_context
def info(context: click.Context, /, *, what: Path, runtime: bool, again: bool, as_json: bool) -> None:
    """Say what a MODEL file or a GALLERY is; `box` is the model in the box.

    With --runtime every runtime that is installed is measured with its model, for a second each, once for a model, a
    machine and the versions installed: its images a second in batches on all cores, and whether it gives the same
    embeddings. The one that is marked runs the model, and why is said.

    \b
    Examples:
      retrieval info box
      retrieval info model.onnx --runtime
      retrieval info gallery --runtime --json
    """
    if again and not runtime:
        raise click.UsageError("--again goes with --runtime")
    if not runtime and what.is_dir():
        context.invoke(gallery_info, gallery=what, as_json=as_json)
        return
    model, recorded = _find(what)
    document, lines = _describe_model(model)
    if recorded is not None:
        document["gallery_runtime"] = recorded
        lines.append(f"its vectors were computed by {recorded['backend']} in {recorded['precision']}")
    if runtime:
        from index.gallery.computed_by import usual_runtime_of
        from index.model.runtime_report import report_runtimes, tell_runtimes

        report = report_runtimes(model, asked=usual_runtime_of(recorded), again=again)
        document, lines = {**document, **report}, [*lines, *tell_runtimes(report)]
    emit(document, as_json=as_json, text="\n".join(lines))


def _find(what: Path) -> tuple[Path, dict[str, Any] | None]:
    """The model file, and of a gallery what computed its vectors, where that was not the usual runtime."""
    from index.model.in_the_box import find_box
    from index.versions.manifest import MODEL_NAME, Manifest
    from index.versions.versions import find_version

    if what.is_dir():
        version = find_version(what)
        return version.folder / MODEL_NAME, Manifest.read(version).runtime
    return (find_box() if str(what) == "box" and not what.exists() else what), None


def _describe_model(path: Path) -> tuple[dict[str, Any], list[str]]:
    from index.errors import ModelFileError
    from index.model.contract import find_contract
    from index.model.seal import read_sealed
    from index.text import printable_path, valid_text

    model, contract = read_sealed(path), find_contract(path)
    if contract is None:
        raise ModelFileError(str(path), "it has no contract; export the model with `retrieval export`")
    document = {"model": valid_text(str(path)), "sha256": model.sha256, **asdict(contract)}
    document["preprocess"] = contract.preprocess.to_json()
    head = f"{printable_path(str(path))}: {len(model.data) / 1e6:.1f} MB, SHA-256 {model.sha256[:12]}"
    return document, [head, *_tell_contract(contract)]


def _tell_contract(contract: ModelContract) -> list[str]:
    from index.text import printable_path

    widths = " and ".join(f"{width} numbers by {name}" for name, width in contract.widths.items())
    size = contract.preprocess
    lines = [
        f"{printable_path(contract.backbone)}, {printable_path(contract.method)}: {widths}, "
        f"{size.crop} of {size.resize} pixels",
        f"precision: {contract.precision}",
    ]
    if (found := contract.measured) is not None:
        lines[-1] += (
            f", with {found.float_layers} layers in float32; Recall@1 {100 * found.recall_at_1:.2f} % where float32 "
            f"has {100 * found.recall_at_1_float32:.2f} % on {found.images:,} images"
        )
    return lines
