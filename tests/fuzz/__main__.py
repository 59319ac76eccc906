"""`python -m tests.fuzz`: attack the readers of images and archives and the server, for a named time."""

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from index.telemetry import switch_off_telemetry
from tests.fuzz.archives import attack_archives
from tests.fuzz.campaign import Fuzzer, run_campaign
from tests.fuzz.images import attack_images
from tests.fuzz.requests import attack_server

FUZZERS: dict[str, Fuzzer] = {"images": attack_images, "archives": attack_archives, "requests": attack_server}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fuzzers in turn, each for its share of the time; 1 where one found a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="for all of them together (120)")
    parser.add_argument("--only", action="append", choices=FUZZERS, help="this fuzzer; can be given more than once")
    parser.add_argument("--seed", type=int, help="of every case (drawn, and shown)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    parser.add_argument("--cases", type=int, help="of each fuzzer, at most")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where failing inputs go (build/fuzz)")
    options = parser.parse_args(arguments)
    switch_off_telemetry()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    chosen = options.only or list(FUZZERS)
    failed = False
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as work:
            report = run_campaign(
                name,
                FUZZERS[name],
                seed=seed,
                work=Path(work),
                keep=options.keep,
                seconds=options.seconds / len(chosen),
                cases=options.cases,
                first=options.first,
            )
        sys.stdout.write(f"{report}\n")
        sys.stdout.flush()
        failed |= bool(report.faults)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
