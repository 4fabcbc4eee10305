"""The process that replays one policy: its clocks are replaced before the gateway is imported.

Arguments: the job's file, and where the decisions go. What is done is told on stdout, a line of JSON at a time.
"""

from __future__ import annotations

import gc
import json
import logging
import random
import sys
from pathlib import Path

from gateway.lab.policy_tests.virtual_time import VirtualTime

GARBAGE = 100_000
"""Objects made before Python looks for cycles: requests make few, and looking for them was 5 % of a replay."""


def main() -> int:
    job_file, result = map(Path, sys.argv[1:])
    clock = VirtualTime()
    clock.begin()
    from gateway.lab.policy_tests.reader import policy_for
    from gateway.lab.replay.errors import ReplayError
    from gateway.lab.replay.job import Job
    from gateway.lab.replay.run import run_job
    from gateway.policy.problems import PolicyError
    from gateway.policy.variables import Variables

    logging.disable(logging.CRITICAL)  # what is logged of failures is what a replay counts
    job = Job.read(job_file)
    random.seed(job.seed)  # of the waits before another try
    gc.freeze()
    gc.set_threshold(GARBAGE, 20, 100)
    try:
        variables = Variables()
        loaded = policy_for(Path(job.policies), variables, [*map(Path, job.also)])
        decisions = run_job(job, loaded, variables, clock, _tell)
    except (PolicyError, ReplayError) as error:
        _say({"error": str(error)})
        return 2
    decisions.save(result)
    return 0


def _tell(what: str, done: int, of: int) -> None:
    _say({"what": what, "done": done, "of": of})


def _say(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
