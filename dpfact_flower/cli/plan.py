"""`dpfact plan` and `dpfact budget`: the cost of a run, before any patient's data is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from dpfact_flower.cli.options import AsJson, Set, assigned, console, echo_json, read_sizes
from dpfact_flower.errors import SettingsError
from dpfact_flower.settings import PrivacySettings, SolverSettings, refuse_unknown

if TYPE_CHECKING:
    from dpfact_flower.privacy.patient.outlook import Needs, Outlook
    from dpfact_flower.privacy.patient.plan import PatientPlan

# Imports are inside the commands, because `dpfact --help` must not wait for SciPy.
# ruff: noqa: PLC0415

_EPSILONS = (8.0, 4.0, 2.0, 1.0, 0.5)
_RANKS = (5, 10, 20, 50)
_COLOURS = {"good": "green", "weak": "yellow", "hopeless": "red", "unknown": "default"}

Sizes = Annotated[str, typer.Option(help="Codes of each feature mode, e.g. 202x316.")]
Rank = Annotated[int, typer.Option(help="Number of phenotypes.", min=1)]
Sites = Annotated[int, typer.Option(help="Number of sites; 0 if unknown.", min=0)]
Patients = Annotated[
    int,
    typer.Option(help="Public estimate of the patients at all sites together; 0: unknown.", min=0),
]


def plan(
    sizes: Sizes,
    patients: Patients = 0,
    sites: Sites = 0,
    rank: Rank = 20,
    epsilon: Annotated[
        float, typer.Option(help="Epsilon of the whole run, for each patient.")
    ] = 4.0,
    delta: Annotated[float, typer.Option(help="Delta of the whole run.")] = 1e-5,
    settings: Set = None,
    as_json: AsJson = False,
) -> None:
    """Plan a run in patient mode from public facts: its releases, noise, cost and prospects.

    No data is read, and no budget is spent. The server and the sites make the same plan from the
    same settings.
    """
    from dpfact_flower.privacy.patient.plan import plan_patient

    chosen = _privacy(settings, epsilon=epsilon, delta=delta, patients=patients)
    rank = SolverSettings(rank=rank).rank  # refuses a rank that a run would refuse
    codes = read_sizes("--sizes", sizes)
    made = plan_patient(chosen, sizes=codes, rank=rank, sites=sites)
    modes = [f"mode {mode}" for mode in range(1, len(codes) + 1)]
    if as_json:
        echo_json(_as_dict(made, modes))
        return
    console.print(_releases(made, modes))
    console.print(f"{made.rounds} Flower rounds; the last one releases nothing")
    guarantee = made.guarantee()
    for figure in (*guarantee.figures, *filter(None, [guarantee.alone])):
        console.print(f"  {figure}", markup=False, soft_wrap=True)
    if made.outlook.verdict != "unknown":
        console.print(_prospects(chosen, codes, rank, sites))
        console.print(_levers(made.outlook))
    verdict = made.outlook.verdict
    sentence = f"[{_COLOURS[verdict]}]{verdict}[/]: {escape(made.outlook.sentence)}"
    console.print(sentence, soft_wrap=True)
    console.print(_asked(made.needs), soft_wrap=True)
    if other := _other_way(chosen, codes, rank, sites):
        console.print(_compared(made, other), soft_wrap=True)


def _other_way(
    chosen: PrivacySettings, codes: tuple[int, ...], rank: int, sites: int
) -> PatientPlan | None:
    """Plan the same run with secure sums if it has none, or without them if it has them."""
    from dpfact_flower.privacy.patient.plan import plan_patient
    from dpfact_flower.privacy.patient.sharing import LEAST_SITES

    if sites < LEAST_SITES or not chosen.patients:
        return None
    other = replace(chosen, secure_sums=not chosen.secure_sums)
    return plan_patient(other, sizes=codes, rank=rank, sites=sites)


def _compared(made: PatientPlan, other: PatientPlan) -> str:
    """Describe the benefit and the assumptions of secure sums in this run."""
    from dpfact_flower.privacy import rounded_up

    shared, own = (made, other) if made.sharing else (other, made)
    alone, sharing = shared.guarantee().alone, shared.sharing
    assert alone is not None
    assert sharing is not None
    chances = (100 * plan.outlook.chance for plan in (own, shared))
    before, after = (f"{_short(plan.outlook.signal)}" for plan in (own, shared))
    return (
        "[bold]secure sums[/] (secure-sums = true): signal {} instead of {}, chance {:.0f} "
        "instead of {:.0f} in 100. ".format(after, before, *reversed(list(chances)))
        + f"They hold if at most {sharing.colluding} of {sharing.sites} sites collude with the "
        f"server, and a sum survives the loss of {sharing.dropouts}. If all others collude, a "
        f"patient has epsilon {rounded_up(alone.epsilon)} instead of "
        f"{rounded_up(shared.guarantee().headline.epsilon)}."
    )


def budget(
    rounds: Annotated[int, typer.Option(help="Federated rounds.", min=1)] = 20,
    epsilon: Annotated[float, typer.Option(help="Total to plan for, without --rho.")] = 1.2,
    rho: Annotated[
        float, typer.Option(help="zCDP cost of one factor in one round; 0 plans it from --epsilon.")
    ] = 0.0,
    delta: Annotated[float, typer.Option(help="Delta of every epsilon.")] = 1e-4,
    modes: Annotated[int, typer.Option(help="Number of feature modes.", min=1)] = 2,
    tau: Annotated[int, typer.Option(help="Local passes per round.", min=1)] = 2,
    clip: Annotated[float, typer.Option(help="L, bound on an entry's gradient.")] = 1.0,
    eta: Annotated[float, typer.Option(help="Step size.")] = 0.01,
    as_json: AsJson = False,
) -> None:
    """Plan a budget in paper mode, from epsilon to noise or from rho to epsilon.

    The epsilon is DPFact's own claim for one entry, and is not proven.
    """
    from dpfact_flower.privacy import PaperPlan, plan_paper, psgd_sensitivity

    made = (
        PaperPlan(rho, delta, rounds, modes) if rho else plan_paper(epsilon, delta, rounds, modes)
    )
    sensitivity = psgd_sensitivity(tau, clip, eta)
    if as_json:
        noise = {"sensitivity": sensitivity, "sigma": made.sigma(sensitivity)}
        echo_json({"rho_per_factor_and_round": made.rho, **noise, **made.guarantee().to_dict()})
        return
    console.print(f"rho per factor and round: {made.rho:.6g} (total {made.total_rho:.6g})")
    console.print(f"sensitivity 2 tau L eta: {sensitivity:.6g}")
    console.print(f"noise, standard deviation: {made.sigma(sensitivity):.6g}")
    for figure in made.guarantee().figures:
        console.print(f"  {figure}", markup=False, soft_wrap=True)


def _privacy(settings: Sequence[str] | None, **facts: float) -> PrivacySettings:
    """Return patient mode's settings, from ``--set`` and from the options."""
    given = {"privacy": "patient", **assigned(settings, facts)}
    refuse_unknown(given, PrivacySettings)
    if given["privacy"] != "patient":
        raise SettingsError(f"privacy: plans are for 'patient'; got {given['privacy']!r}")
    return PrivacySettings.from_config({**given, **facts})


def _releases(made: PatientPlan, modes: list[str]) -> Table:
    table = Table(title="Releases of each site")
    table.add_column("what")
    for name in ("values", "sensitivity", "sigma", "rho"):
        table.add_column(name, justify="right", no_wrap=True)
    for release in made.releases:
        what, count = escape(release.name(modes)), f"{release.count:,}"
        noise = f"{release.sensitivity:g}", f"{release.sigma:.4g}", f"{release.rho:.4g}"
        table.add_row(what, count, *noise)
    return table


def _prospects(privacy: PrivacySettings, sizes: tuple[int, ...], rank: int, sites: int) -> Table:
    """Return a table of chance and signal for other ranks and epsilons, all else equal."""
    from dpfact_flower.privacy import rounded_up
    from dpfact_flower.privacy.patient.plan import plan_patient

    def planned(rank: int, epsilon: float) -> PatientPlan:
        chosen = replace(privacy, epsilon=epsilon)
        return plan_patient(chosen, sizes=sizes, rank=rank, sites=sites)

    table = Table(
        title="Chance in 100 that phenotypes are real, and signal against noise;\n"
        "in brackets: epsilon for replacing a patient's record"
    )
    epsilons = sorted({*_EPSILONS, privacy.epsilon}, reverse=True)
    table.add_column("phenotypes", justify="right")
    for epsilon in epsilons:
        figure = planned(rank, epsilon).guarantee().headline
        replacing = "" if figure.replacing is None else f"\n({rounded_up(figure.replacing)})"
        table.add_column(f"epsilon {epsilon:g}{replacing}", justify="right", no_wrap=True)
    for number in sorted({*_RANKS, rank}):
        outlooks = [planned(number, epsilon).outlook for epsilon in epsilons]
        cells = [
            f"[{_COLOURS[o.verdict]}]{100 * o.chance:.0f}, {_short(o.signal)}[/]" for o in outlooks
        ]
        table.add_row(str(number), *cells)
    return table


def _levers(outlook: Outlook) -> Table:
    """Return a table of changes that would help, the most helpful first."""
    table = Table(title="What would help, all else equal; more sites bring their own patients")
    table.add_column("what")
    table.add_column("good from", justify="right")
    table.add_column("chance in 100 at half or twice", justify="right")
    for lever in outlook.levers:
        table.add_row(lever.name, lever.shown if lever.good else "-", f"{100 * lever.chance:.0f}")
    return table


def _asked(needs: Needs) -> str:
    """Describe the resources that a site and the server need for the run's releases."""
    text = (
        f"a site needs about {_bytes(needs.memory)} of memory besides its data, sends "
        f"{_bytes(needs.sent)} and computes for {needs.seconds:,.0f} s on one idle core"
    )
    if needs.server:
        seconds = f"computes for about {needs.server_seconds:,.0f} s"
        text += f"; the server needs about {_bytes(needs.server)} and {seconds}"
    return text + f"; far less with codes = {needs.codes}" * bool(needs.codes)


def _bytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _short(signal: float) -> str:
    return f"{signal:.2g}" if signal < 100 else f"{signal:,.0f}"


def _as_dict(made: PatientPlan, modes: list[str]) -> dict[str, Any]:
    outlook: dict[str, Any] = {"verdict": "unknown"}
    if made.outlook.verdict != "unknown":
        levers = [lever._asdict() for lever in made.outlook.levers]
        outlook = {**made.outlook._asdict(), "levers": levers}
    return {
        "rounds": made.rounds,
        "start_share": made.start_share,
        "refine_rounds": made.refine_rounds,
        "delta": made.delta,
        "releases": [{"name": each.name(modes), **asdict(each)} for each in made.releases],
        "guarantee": made.guarantee().to_dict(),
        "outlook": outlook,
        "needs": made.needs._asdict(),
    }
