"""Run the clients' scripts against the bundled engine and scripted providers.

    python -m benchmarks.conformance.clients install [CLIENT ...]   fetch their packages (npm and pip, 400 MB)
    python -m benchmarks.conformance.clients table [CLIENT ...]     run them; write the table into docs/clients.md
    python -m benchmarks.conformance.clients check [CLIENT ...]     run them; say where the table is wrong

CLIENT is the beginning of a script's name, such as ``openai_node``; all, if none is named. A client that is not
installed is left out, but not by ``table``. Exits with 1 if anything fails that was not refused in so many words.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.conformance import tools
from benchmarks.conformance.clients import page
from benchmarks.conformance.clients.catalogue import CLIENTS
from benchmarks.conformance.clients.tried import Report, try_out
from benchmarks.conformance.stack import running


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conformance.clients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("install", "table", "check"))
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


if __name__ == "__main__":
    sys.exit(main())
