"""`dpfact plan`: the cost and prospects of a run, before any patient's data is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape
from rich.table import Table
from typer import Option

from dpfact_flower.cli.options import AsJson, Set, assigned, console, echo_json, read_sizes, say
from dpfact_flower.errors import SettingsError
from dpfact_flower.settings import PrivacySettings, SolverSettings, refuse_unknown

if TYPE_CHECKING:
    from dpfact_flower.privacy.patient.outlook import Needs, Outlook
    from dpfact_flower.privacy.patient.plan import PatientPlan

_EPSILONS = (8.0, 4.0, 2.0, 1.0, 0.5)
_RANKS = (5, 10, 20, 50)
_COLOURS = {"good": "green", "weak": "yellow", "hopeless": "red", "unknown": "default"}


def plan(
    sizes: Annotated[str, Option(help="Number of codes in each feature mode, e.g. 202x316.")],
    patients: Annotated[int, Option(help="Public estimate over all sites; 0: unknown.", min=0)] = 0,
    sites: Annotated[int, Option(help="Number of sites; 0: unknown.", min=0)] = 0,
    rank: Annotated[int, Option(help="Number of phenotypes.", min=1)] = 20,
    epsilon: Annotated[float, Option(help="Epsilon of the whole run, for each patient.")] = 4.0,
    delta: Annotated[float, Option(help="Delta of the whole run.")] = 1e-5,
    settings: Set = None,
    as_json: AsJson = False,
) -> None:
    """Plan a run in patient mode from public facts: its releases, noise, cost and prospects.

    The command reads no data and spends no budget. The server and the sites derive the same plan
    from the same settings.
    """
    from dpfact_flower.privacy.patient.outlook import delta_warning
    from dpfact_flower.privacy.patient.plan import plan_patient
    from dpfact_flower.privacy.patient.sharing import LEAST_SITES

    facts = {"epsilon": epsilon, "delta": delta, "patients": patients}
    given = {"privacy": "patient", **assigned(settings, facts)}
    refuse_unknown(given, PrivacySettings)
    if given["privacy"] != "patient":
        raise SettingsError(f"privacy: plans are for 'patient'; got {given['privacy']!r}")
    chosen = PrivacySettings.from_config({**given, **facts})
    rank = SolverSettings(rank=rank).rank  # refuses whatever a run would refuse
    codes = read_sizes("--sizes", sizes)
    planned = partial(plan_patient, sizes=codes, sites=sites)
    made = planned(chosen, rank=rank)
    modes = [f"mode {mode}" for mode in range(1, len(codes) + 1)]
    if as_json:
        echo_json(_as_dict(made, modes))
        return
    console.print(_releases(made, modes))
    say(f"{made.rounds} Flower rounds; the last one releases nothing")
    guarantee = made.guarantee()
    for figure in (*guarantee.figures, *filter(None, [guarantee.alone])):
        say(f"  {figure}")
    if warning := delta_warning(delta, patients):
        say(f"warning: {warning}")
    verdict = made.outlook.verdict
    if verdict != "unknown":
        console.print(_prospects(planned, chosen, rank))
        console.print(_levers(made.outlook))
    sentence = f"[{_COLOURS[verdict]}]{verdict}[/]: {escape(made.outlook.sentence)}"
    console.print(sentence, soft_wrap=True)
    say(_asked(made.needs))
    if sites >= LEAST_SITES and chosen.patients:
        other = replace(chosen, secure_sums=not chosen.secure_sums)
        say(_compared(made, planned(other, rank=rank)))


def _compared(made: PatientPlan, other: PatientPlan) -> str:
    """Compare plans with and without secure sums, and state what secure sums assume."""
    from dpfact_flower.privacy import rounded_up

    shared, own = (made, other) if made.sharing else (other, made)
    alone, sharing = shared.guarantee().alone, shared.sharing
    assert alone is not None
    assert sharing is not None
    before, after = own.outlook, shared.outlook
    return (
        f"secure sums (secure-sums = true): signal {_short(after.signal)} instead of "
        f"{_short(before.signal)}, chance {100 * after.chance:.0f} instead of "
        f"{100 * before.chance:.0f} in 100. The guarantee holds if at most {sharing.colluding} of "
        f"{sharing.sites} sites collude with the server. A sum survives the loss of "
        f"{sharing.dropouts} site(s). If all other sites collude, a patient has epsilon "
        f"{rounded_up(alone.epsilon)} instead of "
        f"{rounded_up(shared.guarantee().headline.epsilon)}."
    )


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


def _prospects(planned: Callable[..., PatientPlan], privacy: PrivacySettings, rank: int) -> Table:
    from dpfact_flower.privacy import rounded_up

    table = Table(
        title="Chance in 100 that phenotypes are real, and signal against noise;\n"
        "in brackets: epsilon for replacing a patient's record"
    )
    epsilons = sorted({*_EPSILONS, privacy.epsilon}, reverse=True)
    choices = [replace(privacy, epsilon=epsilon) for epsilon in epsilons]
    table.add_column("phenotypes", justify="right")
    for chosen in choices:
        figure = planned(chosen, rank=rank).guarantee().headline
        replacing = "" if figure.replacing is None else f"\n({rounded_up(figure.replacing)})"
        table.add_column(f"epsilon {chosen.epsilon:g}{replacing}", justify="right", no_wrap=True)
    for number in sorted({*_RANKS, rank}):
        outlooks = [planned(chosen, rank=number).outlook for chosen in choices]
        cells = [
            f"[{_COLOURS[o.verdict]}]{100 * o.chance:.0f}, {_short(o.signal)}[/]" for o in outlooks
        ]
        table.add_row(str(number), *cells)
    return table


def _levers(outlook: Outlook) -> Table:
    table = Table(title="What would help, all else equal (more sites bring more patients)")
    table.add_column("what")
    table.add_column("good from", justify="right")
    table.add_column("chance in 100 that phenotypes\nare real, at half or double", justify="right")
    for lever in outlook.levers:
        table.add_row(lever.name, lever.shown if lever.good else "-", f"{100 * lever.chance:.0f}")
    return table


def _asked(needs: Needs) -> str:
    text = (
        f"each site needs about {_bytes(needs.memory)} of memory besides its data, and sends "
        f"{_bytes(needs.sent)}"
    )
    if needs.server:
        text += f"; the server needs about {_bytes(needs.server)} of memory"
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
