"""`retrieval demo`."""

from pathlib import Path

import click

from index.commands.console import emit, output_options


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("demo-out"), show_default=True, help="Folder to write."
)
@click.option("--seed", default=0, show_default=True, help="Seed of edits, label noise and training.")
@click.option(
    "--serve/--no-serve", default=True, show_default=True, help="Serve the search page at the end, until Ctrl-C."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=7860, show_default=True, help="Port of the page, on 127.0.0.1."
)
@output_options
def demo(out: Path, seed: int, serve: bool, port: int, as_json: bool) -> None:
    """Run the whole workflow offline, on photos of clothes and groceries that come with the package.

    30 % of the labels of 288 photos are made wrong. New photos of the same products are searched with the built-in
    model, with a model trained on these labels, and after an audit has cleaned them. Then the search page is served
    until Ctrl-C. It takes one to two minutes; a second call continues where the first one ended.

    \b
    Examples:
      retrieval demo
      retrieval demo --no-serve
      retrieval demo --out /tmp/demo --seed 1 --port 8080
    """
    from retrieval_app.demo.story import format_report, run_demo
    from training.run.display import watch_training

    def say(text: str) -> None:
        click.echo(f"• {text}", err=True)

    if serve:
        from retrieval_app.server.serve import listen

        listen("127.0.0.1", port).close()  # a port in use fails now rather than after the work
        say(f"At the end this serves the search page at http://127.0.0.1:{port or '…'}/; --no-serve leaves that out")
    report = run_demo(out, seed=seed, say=say, watch=watch_training)
    emit(report, as_json=as_json, text=format_report(report))
    if serve:
        from retrieval_app.server.options import ServeOptions
        from retrieval_app.server.serve import serve_gallery

        options = ServeOptions.of(out / "gallery", port=port)

        serve_gallery(options, on_ready=lambda url, _: say(f"Serving {url} until Ctrl-C ends it"))
