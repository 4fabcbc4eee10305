"""Input guards on one request: it is refused, changed, restricted to local backends, or passed on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import chain

from gateway.errors import BadRequest, Blocked, GuardUnavailable
from gateway.findings import Finding
from gateway.guards.guards import Guard
from gateway.guards.requests.mask import Placeholders
from gateway.guards.requests.support import MESSAGE, SELF_HARM, Support, calls_for_support
from gateway.guards.scanners.scanner import Unscanned
from gateway.guards.scans.background import ScanInput
from gateway.guards.scans.batch_scan import BatchScan, TooMuchFound, at_once
from gateway.guards.scans.inspection import Inspection
from gateway.guards.texts.edits import Edit, merged, shown
from gateway.guards.texts.paths import Path, replaced
from gateway.guards.texts.request_texts import RequestText, RequestTexts
from gateway.guards.texts.seams import Seam, apart, seams
from gateway.observe.metrics import Metrics
from gateway.types import Call, ChatRequest

TOKEN_IDS = "token_ids"
_AT_ONCE = 5_000
"""Findings that are handled between two turns of the event loop."""
_TEXTS_AT_ONCE = 200
"""Texts that are changed between two turns of the event loop."""


class Screening:
    """All guards that act scan the request as it came; then the strictest action is taken."""

    def __init__(
        self, call: Call, guards: Sequence[Guard], metrics: Metrics, *, replies: bool = True
    ) -> None:
        """``replies``: the request may be answered here."""
        self._call = call
        self._began = time.perf_counter()
        self._replies = replies and call.request.generates
        self.support: Support | None = None
        """The answer, if no model is to be asked."""
        self._texts = RequestTexts()
        self._inspections = [Inspection(guard, "input", metrics, call) for guard in guards]
        self._seams: list[Seam] = []
        self._scans: list[tuple[BatchScan, list[int], int]] = []
        """With the indexes of the texts that each scans, those of seams last, and the number of those before."""
        self._must_stay = call.local_only
        self._is_kept = any(_keeps(guard) for guard in guards)
        """A guard may restrict it to local backends."""

    async def run(self) -> dict[str, str]:
        """Run the guards; returns the originals of the placeholders that the request now has. Sets ``support``.

        Raises ``Blocked``, ``GuardUnavailable``, and ``BadRequest`` for a prompt that cannot be read.
        """
        self._began = time.perf_counter()
        if self._is_kept:
            self._call.local_only = True  # until the guards have decided
        try:
            self._texts = await RequestTexts.read(self._call.request)
            if any(inspection.guard.joins for inspection in self._inspections):
                self._seams = seams(self._texts.texts)
            self._readable()
            self._count()
            for inspection in self._inspections:
                if inspection.guard.limit is None:
                    await self._look(inspection)
            self._refuse()  # what the fast check refuses needs no slower check
            if self.support is None and (self._is_kept or any(scan.is_open for scan, _, _ in self._scans)):
                await self._settle()
                self._refuse()
            return await self._change() if self.support is None else {}
        finally:
            self._note()

    def _readable(self) -> None:
        """Images and audio pass unscanned; a prompt of token ids is text that cannot be read."""
        if TOKEN_IDS not in self._texts.unread:
            return
        for inspection in self._inspections:
            inspection.missed(TOKEN_IDS)
            guard = inspection.guard
            if guard.config.refuses_unjudged:
                field = "input" if self._call.request.embeds else "prompt"
                raise BadRequest(
                    f"The guard '{guard.name}' cannot read token ids. Send '{field}' as text.", param=field
                )

    def _count(self) -> None:
        total = self._texts.characters
        for inspection in self._inspections:
            limit = inspection.guard.limit
            if limit is not None and total > limit:
                inspection.found([Finding("length", limit, total)])
                if inspection.guard.config.action == "block":
                    raise _blocked(
                        inspection.guard,
                        f"The texts of this request have {total} characters. The guard '{inspection.guard.name}' "
                        f"allows {limit}.",
                    )

    async def _look(self, inspection: Inspection) -> None:
        origins = inspection.guard.origins
        mine = [number for number, text in enumerate(self._texts.texts) if text.origin in origins]
        if len(mine) < len(self._texts.texts):
            inspection.skipped = frozenset(text.origin for text in self._texts.texts) - origins
        if not mine:
            return
        texts = self._texts.texts
        joined = [seam for seam in self._seams if seam.origin in origins] if inspection.guard.joins else []
        scan = BatchScan(
            inspection,
            [
                *((texts[number].text, texts[number].origin) for number in mine),
                *((seam.text, seam.origin) for seam in joined),
            ],
            one_is_enough=not inspection.guard.edits,
            every_text=inspection.guard.self_harm is not None or inspection.guard.obeys,
        )
        self._scans.append((scan, [*mine, *(seam.number for seam in joined)], len(mine)))
        try:
            await scan.look()
        except Unscanned as error:
            self._missed(scan, error)
        await asyncio.sleep(0)

    async def _settle(self) -> None:
        """Judges may be remote: they are asked once it is known whether the request must stay local."""
        scans = [scan for scan, _, _ in self._scans]
        keeping = [one for one in scans if _keeps(one.inspection.guard)]
        asking = [one for one in scans if one.inspection.guard.asks_elsewhere and one not in keeping]
        await self._decide([one for one in scans if not self._is_kept or one not in asking])
        self._call.local_only = self._must_stay or any(map(_found_what_stays, keeping))
        await self._decide(asking)

    async def _decide(self, scans: Sequence[BatchScan]) -> None:
        await at_once(*(self._judge(scan) for scan in scans if scan.is_open))

    async def _judge(self, scan: BatchScan) -> None:
        try:
            await scan.decide()
        except Unscanned as error:
            self._missed(scan, error)

    def _missed(self, scan: BatchScan, error: Unscanned) -> None:
        scan.give_up()
        guard = scan.inspection.guard
        scan.inspection.missed(str(error))
        if isinstance(error, TooMuchFound):
            raise BadRequest(
                f"The guard '{guard.name}' has {error} in this request. Send less of it at once."
            ) from None
        if guard.config.refuses_unjudged:
            raise GuardUnavailable(
                f"The guard '{guard.name}' could not judge this request ({error}). Try again in a moment.",
                retry_after=max(guard.config.timeout, 1.0),
            ) from None

    def _refuse(self) -> None:
        for scan, numbers, own in self._scans:
            inspection = scan.inspection
            if inspection.guard.config.action != "block" and not inspection.guard.obeys:
                continue
            found = [
                finding
                for findings in apart(scan.findings, own)
                for finding in findings
                if inspection.guard.action_on(finding) == "block"
            ]
            if inspection.guard.self_harm is not None:
                if scan.is_open:
                    continue  # self-harm goes first, wherever in the request it is spoken of
                if self._supports(scan, numbers):
                    inspection.found(found, "support")
                    return
                found = [finding for finding in found if finding.label != SELF_HARM]
            if found:
                inspection.found(found)
                labels = ", ".join(dict.fromkeys(finding.label for finding in found))
                raise _blocked(
                    inspection.guard,
                    f"The guard '{inspection.guard.name}' refused this request for {labels}.",
                )

    def _supports(self, scan: BatchScan, numbers: Sequence[int]) -> bool:
        guard = scan.inspection.guard
        wanted = guard.self_harm
        if wanted is None or wanted.action != "support" or not self._replies:
            return False
        harmful = [
            number
            for number, findings in zip(numbers, scan.findings, strict=True)
            if any(finding.label == SELF_HARM for finding in findings)
        ]
        message = wanted.message or MESSAGE
        if calls_for_support(self._texts.texts, harmful, message):
            self.support = Support(guard.name, message)
        return self.support is not None

    async def _change(self) -> dict[str, str]:
        edits: dict[int, list[list[Edit]]] = {}
        """By the index of a text, those of each guard."""
        done = 0
        for scan, numbers, own in self._scans:
            inspection = scan.inspection
            guard = inspection.guard
            noted = "" if guard.self_harm is None else "flag"
            for number, findings in zip(numbers, apart(scan.findings, own), strict=True):
                mine: list[Edit] = []
                for start in range(0, len(findings), _AT_ONCE):
                    some = findings[start : start + _AT_ONCE]
                    inspection.found(some, noted)
                    if guard.edits:
                        mine += [edit for one in some if (edit := _edit(guard, one)) is not None]
                    if (done := done + len(some)) >= _AT_ONCE:
                        done = 0
                        await asyncio.sleep(0)
                if mine:
                    edits.setdefault(number, []).append(mine)
        if not edits:
            return {}
        placeholders = Placeholders(self._texts.texts)
        fresh: dict[Path, str] = {}
        for count, number in enumerate(sorted(edits), 1):
            text = self._texts.texts[number]
            if text.kind == "fixed":
                raise _unchangeable(text, edits[number][0][0])
            one, *others = edits[number]  # each without overlaps
            fresh[text.path] = await placeholders.edited(text, merged(chain(one, *others)) if others else one)
            if not count % _TEXTS_AT_ONCE:
                await asyncio.sleep(0)
        self._call.request = replaced(self._call.request, fresh)
        return placeholders.originals

    def _note(self) -> None:
        self._call.receipt.note(
            "guard_input",
            guards={
                **self._call.receipt.notes.get("guard_input", {}).get("guards", {}),  # those that only flag
                **{inspection.guard.name: inspection.facts() for inspection in self._inspections},
            },
            began=round(self._began - self._call.started, 6),
            seconds=round(time.perf_counter() - self._began, 6),
            scanned=not any(inspection.unscanned for inspection in self._inspections),
            unread=_told(self._texts.unread),
        )


def _told(unread: Sequence[str]) -> list[str]:
    """Each kind of what was no text, for the receipt."""
    return list(dict.fromkeys(unread))[:16]


def _blocked(guard: Guard, message: str) -> Blocked:
    """In the policy's own words, where it has any."""
    return Blocked(guard.config.message or message)


def _edit(guard: Guard, one: Finding) -> Edit | None:
    action = guard.action_on(one)
    if action not in ("redact", "mask"):
        return None
    text = one.remedy.text if one.remedy is not None and action == "redact" else None
    return Edit(one.start, one.end, one.label, one.end - one.start, action == "mask", text)


def _unchangeable(text: RequestText, edit: Edit) -> Blocked:
    where = ".".join(str(step) for step in text.path if not str(step).startswith("*"))
    return Blocked(
        f"There is {shown(edit.label)} among the names in '{where}', which cannot be masked. Rename what it names."
    )


def _found_what_stays(scan: BatchScan) -> bool:
    guard = scan.inspection.guard
    return any(guard.action_on(finding) == "local" for findings in scan.findings for finding in findings)


def _keeps(guard: Guard) -> bool:
    return guard.config.action == "local"


def scan_input(request: ChatRequest) -> ScanInput:
    """What guards that only flag read of a request."""
    texts = RequestTexts.of(request)
    return ScanInput(
        texts=[(text.text, text.origin) for text in texts.texts],
        seams=[(seam.text, seam.origin) for seam in seams(texts.texts)],
        lengths=[texts.characters],
        unread=[TOKEN_IDS] if TOKEN_IDS in texts.unread else [],
        no_text=_told(texts.unread),
    )
