"""The queue of waiting requests: by priority, then fair between tenants, then first come, first served."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping

from outrider.requests.request import Request

_Rank = tuple[int, bool]
"""Priority, and whether the requests have not run yet: preempted ones go first."""


class WaitingQueue:
    """Requests that wait, in lines by priority and tenant.

    Among equal priorities, preempted requests come first, in order of arrival.  Then comes the tenant with the fewest
    running requests; of equal ones, the one whose first request has waited longest.  So nobody starves: whoever waits
    becomes the oldest of a tenant that runs nothing.  A lower priority waits for all higher ones.
    """

    def __init__(self) -> None:
        self._lines: dict[_Rank, dict[str | None, list[Request]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count  # read by other threads while the lines change

    def __iter__(self) -> Iterator[Request]:
        return (request for lines in self._lines.values() for line in lines.values() for request in line)

    def add(self, request: Request) -> None:
        """Add a request that has not run yet, or was preempted."""
        rank, tenant = _place(request)
        insort(self._lines.setdefault(rank, {}).setdefault(tenant, []), request, key=_arrival)
        self._count += 1

    def remove(self, request: Request) -> None:
        """Remove a request."""
        rank, tenant = _place(request)
        lines = self._lines[rank]
        lines[tenant].remove(request)
        self._count -= 1
        if not lines[tenant]:
            del lines[tenant]
        if not lines:
            del self._lines[rank]

    def clear(self) -> None:
        """Remove all requests."""
        self._lines.clear()
        self._count = 0

    def in_order(self, running: Mapping[str | None, int]) -> Iterator[Request]:
        """Requests in the order of service; each may be removed before the next one is asked for.

        Args:
            running: how many requests of each tenant run; read again for every request.
        """
        for rank in sorted(self._lines):
            lines = self._lines[rank]
            passed = dict.fromkeys(lines, 0)
            while heads := [
                (running.get(tenant, 0), line[passed[tenant]].arrival, tenant)
                for tenant, line in lines.items()
                if passed[tenant] < len(line)
            ]:
                tenant = min(heads, key=_two)[2]
                line, before = lines[tenant], len(lines[tenant])
                yield line[passed[tenant]]
                passed[tenant] += len(line) == before


def _place(request: Request) -> tuple[_Rank, str | None]:
    """A request's line; that of preempted ones is shared by all tenants."""
    fresh = not request.preempted
    return (request.params.priority, fresh), request.tenant if fresh else None


def _arrival(request: Request) -> int:
    return request.arrival


def _two(head: tuple[int, int, str | None]) -> tuple[int, int]:
    return head[:2]
