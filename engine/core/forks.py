"""Choices of a prompt (``n`` > 1) that have not begun, as the prompt is not computed yet."""

from __future__ import annotations

from engine.core.request import Request


class Forks:
    """A request with siblings, the leader, has generated nothing: all choices begin in the same step."""

    def __init__(self) -> None:
        self._leaders: dict[int, Request] = {}
        """By sibling's id."""

    def __len__(self) -> int:
        return len(self._leaders)

    def add(self, leader: Request) -> None:
        for sibling in leader.siblings:
            self._leaders[sibling.id] = leader

    def drop(self, sibling_id: int) -> bool:
        """Removes an aborted sibling; False if there is none of that id."""
        leader = self._leaders.pop(sibling_id, None)
        if leader is None:
            return False
        leader.siblings = [sibling for sibling in leader.siblings if sibling.id != sibling_id]
        return True

    def promote(self, leader: Request) -> None:
        """The first sibling takes the leader's place, with all that is computed already."""
        sibling = leader.siblings[0]
        self.drop(sibling.id)
        leader.id, leader.params = sibling.id, sibling.params

    def begin(self, leader: Request) -> list[Request]:
        """Requests for the remaining siblings. They hold no blocks."""
        begun = []
        for position, sibling in enumerate(leader.siblings, 1):
            del self._leaders[sibling.id]
            fork = Request(
                sibling.id,
                leader.tokens[: leader.prompt_length],
                sibling.params,
                priority=leader.priority,
                submitted=leader.submitted,
                deadline=leader.deadline,
                weight=leader.weight,
                adapter=leader.adapter,
                tenant=leader.tenant,
                salt=leader.salt,
                shared=leader.shared,
            )
            fork.rank = (leader.rank[0], leader.rank[1] + position)
            fork.started = True
            begun.append(fork)
        leader.siblings = []
        return begun

    def check_integrity(self, requests: dict[int, Request]) -> None:
        """Raises ``AssertionError`` unless these are the siblings of ``requests``, of which none has begun."""
        found = {sibling.id: leader for leader in requests.values() for sibling in leader.siblings}
        if found != self._leaders:
            raise AssertionError("siblings and leaders are inconsistent")
        if any(sibling_id in requests for sibling_id in found):
            raise AssertionError("a sibling has begun, yet waits for its leader")
        if any(leader.generated for leader in found.values()):
            raise AssertionError("a leader has generated before its siblings began")
