"""Run the clients' scripts against the bundled engine and scripted providers.

    python -m benchmarks.conformance.clients install [CLIENT ...]   fetch their packages (npm and pip, 1.5 GB)
    python -m benchmarks.conformance.clients table [CLIENT ...]     run them; write the table into docs/clients.md
    python -m benchmarks.conformance.clients check [CLIENT ...]     run them; say where the table is wrong
    python -m benchmarks.conformance.clients errand [CLIENT ...]    send the coding agents on their errand with the
                                                                    model that TOLLGATE_AGENT_MODEL names

CLIENT is the beginning of a script's name, such as ``openai_node``; all, if none is named. A client that is not
installed is left out, but not by ``table``. Exits with 1 if anything fails that was not refused in so many words.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.conformance import tools
from benchmarks.conformance.clients import page, real
from benchmarks.conformance.clients.catalogue import CLIENTS, Client
from benchmarks.conformance.clients.tried import Report, try_out
from benchmarks.conformance.stack import running


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conformance.clients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("install", "table", "check", "errand"))
    parser.add_argument("clients", nargs="*", metavar="CLIENT")
    args = parser.parse_args()
    chosen = [
        one
        for one in CLIENTS
        if not args.clients or any(one.script.startswith(name) for name in args.clients)
    ]
    if args.action == "install":
        for client in chosen:
            client.install()
        return 0
    if args.action == "table":
        for client in CLIENTS:
            if why := client.missing():
                parser.error(why)
    if args.action == "errand":
        return _errands([client for client in chosen if client.is_agent])
    reports: list[Report] = []
    with running() as stack:
        for client in chosen:
            print(f"{client.name} …", file=sys.stderr, flush=True)
            try:
                reports.append(try_out(client, stack))
            except tools.Missing as missing:
                print(f"{client.name} is left out: {missing}", file=sys.stderr)
    faults = [fault for report in reports for fault in report.faults]
    if args.action == "check":
        faults += page.differences(reports, page.PAGE.read_text())
    elif chosen == list(CLIENTS):
        page.put(page.table(reports))
    print(page.table(reports))
    for fault in faults:
        print(f"FAULT {fault}")
    return int(bool(faults))


def _errands(agents: Sequence[Client]) -> int:
    weights = real.weights()
    if weights is None:
        print(real.HOW, file=sys.stderr)
        return 2
    failed = 0
    with running(weights) as stack:
        for agent in agents:
            for attempt, tried in enumerate(real.errands(agent, stack), 1):
                came_to = "the file was written" if tried.works else tried.reason
                print(f"{agent.name}, attempt {attempt}: {tried.seconds:.0f} s: {came_to}", flush=True)
            failed += not tried.works
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
