"""A real Ray cluster on this machine, in a process of its own, for tests; commands come on its stdin.

    python -m tests.ray_cluster

Its head embeds nothing, two nodes of one processor each do. It prints its address, and `done` after each command: `kill
worker`, `kill node`, `add node`. It ends with its stdin.
"""

import sys

import click
import psutil

from index.telemetry import switch_off_telemetry

_WORKER = "ray::embed_sent"


def _kill_worker() -> None:
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith(_WORKER):
                process.kill()
                return
        except psutil.Error:
            continue  # it has just ended
    raise RuntimeError("no worker runs")


def main() -> None:
    """Serve the commands."""
    switch_off_telemetry()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    click.echo(cluster.address)
    for line in sys.stdin:
        match line.split():
            case ["kill", "worker"]:
                _kill_worker()
            case ["kill", "node"]:
                cluster.remove_node(nodes.pop(), allow_graceful=False)
            case ["add", "node"]:
                nodes.append(cluster.add_node(num_cpus=1))
        click.echo("done")
    cluster.shutdown()


if __name__ == "__main__":
    main()
