"""Queues, whole arrays of arrivals at a time, and the closed forms that they are held against."""

from __future__ import annotations

import heapq
import math

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


def one_server(arrivals: Times, service: Times) -> Times:
    """When each of ``arrivals`` (in order, seconds) has been served, first come, first served.

    Lindley's recursion D(n) = max(D(n-1), A(n)) + S(n), unrolled: D(n) = C(n) + max over k <= n of A(k) - C(k-1), where
    C are running sums of S.
    """
    work = np.cumsum(service)
    return work + np.maximum.accumulate(arrivals - (work - service))


def at_places(arrivals: Times, service: Times, place: Places) -> Times:
    """As ``one_server``, each place one of its own; ``arrivals`` need not be in order."""
    done = np.empty_like(arrivals)
    order = np.lexsort((arrivals, place))
    bounds = np.flatnonzero(np.diff(place[order])) + 1
    for part in np.split(order, bounds):
        if len(part):
            done[part] = one_server(arrivals[part], service[part])
    return done


def servers(arrivals: Times, service: Times, count: int) -> Times:
    """``count`` servers with one queue."""
    free = [0.0] * count
    done = np.empty_like(arrivals)
    for number, (at, takes) in enumerate(zip(arrivals.tolist(), service.tolist(), strict=True)):
        end = max(at, heapq.heappop(free)) + takes
        heapq.heappush(free, end)
        done[number] = end
    return done


def md1_wait(busy: float, service: float) -> float:
    """Mean seconds in the queue of an M/D/1 (Pollaczek and Khinchine)."""
    return busy * service / (2 * (1 - busy))


def mg1_wait(rate: float, mean: float, square: float) -> float:
    """Of an M/G/1: ``square`` is the mean of squared service times."""
    return rate * square / (2 * (1 - rate * mean))


def mmc_wait(busy: float, service: float, count: int) -> float:
    """Of an M/M/c (Erlang's C); ``busy`` of each server."""
    offered = busy * count
    last = math.exp(count * math.log(offered) - math.lgamma(count + 1)) / (1 - busy)
    others = sum(math.exp(k * math.log(offered) - math.lgamma(k + 1)) for k in range(count))
    return last / (others + last) * service / (count * (1 - busy))
