"""What one policy generation records: which requests, with what of their contents, and how those are masked."""

from __future__ import annotations

import logging

from gateway.errors import GatewayError
from gateway.metering.bill import Bill
from gateway.observe.accounting import RequestAccounting
from gateway.observe.ended import Ended
from gateway.observe.outcome import reason_of
from gateway.policy.schema import Policy
from gateway.recording.kept_answer import KeptAnswer
from gateway.recording.masking import TextMasker
from gateway.recording.recordings import Recordings
from gateway.recording.sampling import forbids_storage, fraction
from gateway.recording.snapshot import Snapshot
from gateway.residency import is_outside
from gateway.types import Call

log = logging.getLogger(__name__)

_MOST_ANSWERS = 10_000


class Records:
    """In the place of ``accounting``, which is told of everything first. Requests that began under this generation are
    recorded as it says, whatever later ones say."""

    def __init__(
        self, policy: Policy, accounting: RequestAccounting, recordings: Recordings, masker: TextMasker | None
    ) -> None:
        """``masker``: where texts are recorded."""
        self.generation = 0
        """As the history numbers it; set once that is known."""
        self._accounting = accounting
        self._recordings = recordings
        self._config = policy.record
        self._tenants = frozenset(policy.record.tenants)
        self._masker = masker
        self._is_elsewhere = policy.files.bucket is not None
        self._region = policy.regions.get("files")
        self._answers: dict[int, KeptAnswer] = {}
        """Of requests that are on their way, by the receipt's identity."""

    def begin(self, call: Call) -> KeptAnswer | None:
        """What is to have the text of its answer; None where that is not recorded."""
        if call.line is not None or not self._is_recorded(call) or not self.may_keep_content(call):
            return None
        if len(self._answers) >= _MOST_ANSWERS:
            return None
        answer = self._answers[id(call.receipt)] = KeptAnswer(call.request, call.model)
        return answer

    def record(self, call: Call, ended: Ended) -> None:
        self._accounting.record(call, ended)
        answer = self._answers.pop(id(call.receipt), None)
        if not self._is_recorded(call):
            return
        kept = Snapshot.of(
            call, ended, generation=self.generation, has_content=self.may_keep_content(call), answer=answer
        )
        self._recordings.add(kept, self._masker)

    def record_early_refusal(self, call: Call, error: GatewayError) -> None:
        """``call`` never came to the pipeline: it asked for a model that there is not, or not for its caller. Another
        policy may have it. Who refused it has accounted for it."""
        if call.request.api == "count_tokens" or not self._is_recorded(call):
            return
        ended = Ended(call, status=error.status, error=reason_of(error))
        ended.code = error.code
        has_content = self.may_keep_content(call)
        is_told = has_content and self._masker is not None and call.line is None
        kept = Snapshot.of(
            call,
            ended,
            generation=self.generation,
            has_content=has_content,
            answer=KeptAnswer(call.request, call.model) if is_told else None,
        )
        self._recordings.add(kept, self._masker)

    def record_for_house(self, call: Call, bill: Bill) -> None:
        self._accounting.record_for_house(call, bill)

    def _is_recorded(self, call: Call) -> bool:
        if self._tenants and call.principal.tenant not in self._tenants:
            return False
        return self._config.share >= 1.0 or fraction(call.request_id) < self._config.share

    def may_keep_content(self, call: Call) -> bool:
        """Whether texts may be kept, and hashes of them: not where the caller says that nothing is to be stored, and
        in a bucket not what is to stay on local backends or in other regions."""
        if forbids_storage(call):
            return False
        if not self._is_elsewhere:
            return True
        tenant = call.policy.tenants.get(call.principal.tenant)
        stays = call.local_only or (tenant is not None and tenant.local_only)
        return not stays and not is_outside(call, self._region)
