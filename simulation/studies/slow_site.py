"""Compare waiting for all replies with using each reply at once, when one site is slow.

    python -m simulation.studies.slow_site demo --slower 10 --start random

Sites and server are the package's own. The clock is simulated. A round takes `--seconds` at a
normal site, and `--slower` times as long at the slow site. The goal is the fit of the shared
factors after the last synchronous round, with every patient refitted. The study prints when each
method first reaches 95 % and 99 % of that fit. Data are as in `simulation.studies.shared_fit`.

The method "in step, grace" ends rounds without the slow site's late replies. For comparison, "each
alone" updates the model with one reply at a time, by elastic averaging.
"""

import argparse
import heapq
import math
from collections.abc import Iterator, Sequence
from statistics import mean, median
from typing import Any

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.evaluation.summarise import shared_error
from dpfact_flower.privacy import Release
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.elastic import elastic_average
from dpfact_flower.server.on_arrival import OnArrival
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.site.elastic import ElasticRound
from dpfact_flower.site.round import JobState
from dpfact_flower.site.store import SiteState
from dpfact_flower.tensor import Factors
from dpfact_flower.wire.protocol import RoundRequest, SiteReply
from simulation.arguments import at_least, one_line_errors
from simulation.studies.shared_fit import load

_SHARES = (0.95, 0.99)
Moment = tuple[float, Factors]
"""Seconds since the run began, and the global factors at that time."""


class EachAlone(OnArrival):
    """A server that updates the model with one reply at a time, with weight 1 / sites."""

    def take(self, who: str, reply: SiteReply) -> None:
        """Move the model towards this reply alone."""
        before, sites = self.factors, len(self._sites)
        super().take(who, reply)
        self.rule.factors = elastic_average(before, [reply.arrays], 1 / sites)


class _Players:
    """A cohort's sites, each with its state."""

    def __init__(self, cohort: Cohort) -> None:
        self.sites = {site.name: site for site in cohort.sites}
        self._states: dict[str, SiteState | None] = dict.fromkeys(self.sites)

    def reply(self, name: str, request: RoundRequest) -> SiteReply:
        """Return a site's reply."""
        site = self.sites[name]
        work = ElasticRound(site.vocabularies, request, site=name, simulation=True)
        outcome = work.run(site, JobState(self._states[name]))
        self._states[name] = outcome.state
        assert isinstance(outcome.release, Release)
        return SiteReply(name, outcome.release.arrays)


def coordinator(
    cohort: Cohort, kind: type[Coordinator], rank: int, settings: dict[str, Any]
) -> Coordinator:
    """Return the server of a run without noise."""
    aggregation: Any = "async" if issubclass(kind, OnArrival) else "sync"
    run = RunSettings(aggregation=aggregation, sites=len(cohort.sites), **settings)
    return kind(
        [len(vocabulary) for vocabulary in cohort.vocabularies],
        solver=SolverSettings(rank=rank), privacy=PrivacySettings(privacy="none"), run=run,
    )  # fmt: skip


def in_step(
    server: Coordinator, cohort: Cohort, seconds: dict[str, float], *, without: str = ""
) -> Iterator[Moment]:
    """Run rounds that wait for all sites or, after the first round, for all except `without`."""
    players, now = _Players(cohort), 0.0
    for number in range(1, server.rounds + 1):
        request = server.request(number)
        names = [name for name in players.sites if number == 1 or name != without]
        replies = [players.reply(name, request) for name in names]
        now += max(seconds[name] for name in names)
        server.close_round(number, replies, [], bytes_down=0, bytes_up=0, seconds=0.0)
        yield now, server.factors


def on_arrival(server: OnArrival, cohort: Cohort, seconds: dict[str, float]) -> Iterator[Moment]:
    """Run a synchronous first round, and then use each reply when it arrives."""
    players = _Players(cohort)
    names, now = list(players.sites), max(seconds.values())
    request = server.request(1)
    replies = [players.reply(name, request) for name in names]
    server.close_round(1, replies, [], bytes_down=0, bytes_up=0, seconds=0.0)
    yield now, server.factors
    due: list[tuple[float, str, RoundRequest]] = []
    while not server.is_over:
        for name in names:
            if (asked := server.ask(name)) is not None:
                heapq.heappush(due, (now + seconds[name], name, asked))
        now = due[0][0] if due else now
        while due and due[0][0] == now:
            _, name, asked = heapq.heappop(due)
            server.take(name, players.reply(name, asked))
        before = server.finished_rounds
        server.advance(names, now)
        if server.finished_rounds > before:
            yield now, server.factors


def ways(
    cohort: Cohort, slow: str, takes: dict[str, float], rank: int, run: dict[str, Any]
) -> dict[str, Iterator[Moment]]:
    """Return the compared methods, keyed by their printed names."""

    def made(kind: type[Coordinator]) -> Coordinator:
        return coordinator(cohort, kind, rank, run)

    found: dict[str, Iterator[Moment]] = {
        "in step": in_step(made(Coordinator), cohort, takes),
        "in step, grace": in_step(made(Coordinator), cohort, takes, without=slow),
    }
    for name, kind in (("on arrival", OnArrival), ("on arrival, each alone", EachAlone)):
        server = made(kind)
        assert isinstance(server, OnArrival)
        found[name] = on_arrival(server, cohort, takes)
    return found


def rows(
    cohort: Cohort, slow: str, takes: dict[str, float], rank: int, runs: Sequence[dict[str, Any]]
) -> Iterator[str]:
    """Yield a row per method, with median times and the number of runs that reached the goal."""
    tensors = [site.tensor.scaled_to_unit_patients() for site in cohort.sites]
    found: dict[str, list[tuple[list[float], float, float]]] = {}
    for run in runs:
        aim = 0.0
        for name, moments in ways(cohort, slow, takes, rank, run).items():
            fits = [(at, shared_error(tensors, shared).fit) for at, shared in moments]
            aim = aim or fits[-1][1]
            when = [
                next((at for at, fit in fits if fit >= share * aim), math.inf) for share in _SHARES
            ]
            found.setdefault(name, []).append((when, *fits[-1]))
    for name, each in found.items():
        shown = []
        for position, _ in enumerate(_SHARES):
            times = [when[position] for when, _, _ in each]
            there, middle = sum(map(math.isfinite, times)), median(times)
            shown.append(f"{middle:,.0f}" if math.isfinite(middle) else "never")
            shown[-1] += f" ({there} of {len(times)})" if there < len(times) else ""
        end, fit = median(at for _, at, _ in each), [fit for _, _, fit in each]
        spread = f"{mean(fit):.4f} ({min(fit):.4f} to {max(fit):.4f})"
        yield f"| {slow} | {name} | {' | '.join(shown)} | {end:,.0f} | {spread} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", help="PRESET, PRESET@SEED or a folder")
    parser.add_argument("--rank", type=at_least(1), default=12)
    parser.add_argument("--rounds", type=at_least(2), default=40)
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of a round at a site")
    parser.add_argument(
        "--slower", type=float, default=10.0, help="factor by which the slow site is slower"
    )
    parser.add_argument("--slow", nargs="*", help="the slow sites, one after another")
    parser.add_argument("--start", choices=("cooccurrence", "random"), default="cooccurrence")
    parser.add_argument("--seeds", type=at_least(1), default=4, help="number of runs, from seed 0")
    given = parser.parse_args(arguments)
    with one_line_errors(parser):
        cohort = load(given.data)
        sizes = {site.name: site.tensor.n_patients for site in cohort.sites}
        ends = sorted(sizes, key=lambda name: sizes[name])
        runs = [
            {"rounds": given.rounds, "seed": seed, "start": given.start}
            for seed in range(given.seeds)
        ]
        print("| slow site | way | s to 95 % | s to 99 % | s in all | fit, mean (range) |")  # noqa: T201
        print("|---|---|---|---|---|---|")  # noqa: T201
        for slow in given.slow or (ends[-1], ends[0]):
            takes = dict.fromkeys(sizes, given.seconds) | {slow: given.seconds * given.slower}
            for row in rows(cohort, slow, takes, given.rank, runs):
                print(row, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
