"""Define the commands `dpfact site` and `dpfact keys`, which a hospital runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from typer import Option

from dpfact_flower.cli import options as opt
from dpfact_flower.cli.options import console, echo_json, progress, say
from dpfact_flower.data.site_data import SiteData, open_site
from dpfact_flower.errors import DPFactError, SettingsError, StateError
from dpfact_flower.machine.files import create_once
from dpfact_flower.runtime.services import HOST, PORT, run_supernode
from dpfact_flower.runtime.superlink import tool
from dpfact_flower.settings import Scalar, SiteSettings, check_name, refuse_unknown

if TYPE_CHECKING:
    from dpfact_flower.runtime.check import CheckResult

site_app = typer.Typer(
    name="site",
    help="At a hospital: set up the files, run the services, check the machine.",
    no_args_is_help=True,
)
keys_app = typer.Typer(
    name="keys",
    help="Secure sums: make a hospital's key, or show its public line.",
    no_args_is_help=True,
)
_SAFE: dict[str, Scalar] = {"allow-privacy": "patient", "budget-delta": 1e-5, "reply-after": 60.0}


@site_app.command("init")
def site_init(
    name: Annotated[str, typer.Argument()],
    centre: Annotated[str, Option(help="The centre's name, with :PORT unless the port is 443.")],
    ca: Annotated[Path, Option(help="The file ca.crt from the centre.")],
    data: Annotated[Path, Option(help="The hospital's .npz file, which is copied.")],
    max_epsilon: Annotated[float, Option(help="Limit on each patient's epsilon over all runs.")],
    folder: opt.Home = opt.HOME,
    port: opt.Port = 9200,
    settings: opt.Set = None,
) -> None:
    """Write and check a hospital's key, shared secret, settings, data and systemd units.

    NAME is the hospital's public name. By default, the hospital takes part only in runs with the
    setting privacy=patient, and sends each reply 60 s or more after the request. To change a site
    setting, use -s. To list all site settings, run dpfact settings.
    """
    from dpfact_flower.runtime.check import check_site
    from dpfact_flower.runtime.installation import cert_fingerprint, key_fingerprint, write_site
    from dpfact_flower.site.hospital import check_choices, check_data_site

    folder, data, ca = (path.expanduser().absolute() for path in (folder, data, ca))
    given = opt.parse_assignments(settings, ("site", "data-path", "state-dir", "max-epsilon"))
    check_name("NAME", name)
    chosen = {"site": name, "max-epsilon": max_epsilon, **_SAFE, **given}
    refuse_unknown(chosen, SiteSettings)
    site = SiteSettings.from_config({**chosen, "state-dir": str(folder)})
    check_choices(site)
    check_data_site(open_site(data).name, site)
    authority = ca.read_bytes()
    issuer = cert_fingerprint(authority)
    public = write_site(
        folder, chosen, centre=centre if ":" in centre else f"{centre}:443",
        authority=authority, data=data, port=port,
    )  # fmt: skip
    config, key = folder / "site" / f"{name}.toml", folder / "node" / name
    say(
        f"Written to {folder}; your settings are in {config}.\n"
        f"1. Send {folder}/{name}.pub to the centre. Read this fingerprint to them by telephone:\n"
        f"   {key_fingerprint(public)}\n"
        f"   The centre reads the fingerprint of ca.crt to you, which must be:\n"
        f"   {issuer}\n"
        f"2. Start both parts. Read {folder}/install.sh, then: sudo sh {folder}/install.sh\n"
        f"   To try it without root: sh {folder}/start.sh\n"
        f"3. Check it: sudo {tool('dpfact')} site check --config {config} --key {key}\n"
        "Checked so far:"
    )
    _show(check_site(config, key, started=False))


@site_app.command("answer")
def site_answer(
    config: opt.Config,
    secret: Annotated[Path, Option(help="The SuperNode's --superexec-auth-secret-file.")],
    port: opt.Port = PORT,
    host: Annotated[str, Option(help="The SuperNode's host: this machine or a container.")] = HOST,
    node_user: Annotated[
        str, Option(help="User who runs the SuperNode (default: you); other users get no answer.")
    ] = "",
) -> None:
    """Answer a SuperNode's messages with the installed code, until you stop the command.

    The SuperNode needs the option --isolation process. This command replaces flower-superexec,
    which would run code that the SuperLink sends.
    """
    from dpfact_flower.runtime.executor import execute

    execute(config, secret, port, host, node_user)


@site_app.command("connect", **opt.PASSED_ON)
def site_connect(context: typer.Context) -> None:
    """Run a SuperNode with flower-supernode's options, and exit when the SuperNode goes offline.

    flower-supernode itself would keep running offline, so systemd would not restart it.
    """
    run_supernode(context.args)


@site_app.command("check")
def site_check(
    config: opt.Config,
    key: Annotated[Path, Option(help="The SuperNode's --auth-supernode-private-key file.")],
    as_json: opt.AsJson = False,
) -> None:
    """Check a site's setup, and especially that only the installed code answers messages.

    First start the SuperNode and the command dpfact site answer. Run this command as root, because
    only root can read all files. The exit code is 1 if a check fails.
    """
    from dpfact_flower.runtime.check import check_site

    findings = check_site(config, key)
    if as_json:
        echo_json([asdict(finding) for finding in findings])
    else:
        _show(findings)
    if any(finding.faults for finding in findings):
        raise typer.Exit(1)


def _show(findings: Sequence[CheckResult]) -> None:
    for finding in findings:
        for line in finding.faults or (finding.check,):
            mark = "[red]FIX[/red]" if finding.faults else "[green]OK[/green] "
            console.print(f"{mark} {escape(line)}", soft_wrap=True, highlight=False)


@site_app.command("metrics")
def metrics(config: opt.Config) -> None:
    """Print JSON for the hospital's monitoring: remaining epsilon, last charge, failures.

    Keep the JSON at the hospital. Run this command as the user who runs dpfact site answer. A run
    may cost more than epsilon_left, because runs add less than their own epsilons to the total.
    """
    from dpfact_flower.site.hospital import read_site_settings, site_metrics

    echo_json(site_metrics(read_site_settings(config)))


@site_app.command("close")
def site_close(config: opt.Config) -> None:
    """Close all runs at this site, so that the site refuses further rounds of these runs.

    Always close all runs before you replace the site's data. A later refusal in an open run would
    tell the server that the data has changed. Run this as the user who runs dpfact site answer.
    """
    from dpfact_flower.site.hospital import read_site_settings, site_folder
    from dpfact_flower.site.store import close_jobs

    settings = read_site_settings(config)
    say(f"closed runs: {close_jobs(site_folder(settings))}; now replace {settings.data_path}")


@site_app.command("refit")
def site_refit(
    config: opt.Config,
    job: Annotated[str, Option(help="Job of one run (default: all runs not yet refitted).")] = "",
) -> None:
    """Refit phenotypes to the site's own patients, starting from a run's global phenotypes.

    This command is for runs in patient mode. The new model has no noise, stays at the site in the
    job's folder, and is never sent. To refit a run again, give the run's job with --job. The exit
    code is 1 if a run could not be refitted.
    """
    from dpfact_flower.evaluation.page import percent
    from dpfact_flower.site.hospital import Hospital, read_site_settings
    from dpfact_flower.site.refit import refit, unfitted

    settings = read_site_settings(config)
    site = SiteData.load(settings.data_path)
    folder = Hospital(site, settings, simulation=False).folder
    jobs = [job] if job else unfitted(folder)
    if not jobs:
        raise StateError(f"{folder}: no finished run in patient mode is left to fit")
    failed = False
    for name in jobs:
        try:
            with progress() as watch:
                watch("fitting", 0.0)
                fit = refit(site, settings, name).error.fit
        except DPFactError as error:
            failed = True
            say(f"{name}: not refitted: {error}")
        else:
            say(f"{name}: explains {percent(fit)} of this site's data; in {folder / name}")
    if failed:
        raise typer.Exit(1)


@keys_app.command()
def make(
    key: Path, site: Annotated[str, Option(help="This site's name, as the centre knows it.")]
) -> None:
    """Make a long-term key in the file KEY, and print the key's public line for the other sites.

    Send the public line to every other site, but not through the centre. Compare fingerprints by
    telephone. Keep the file KEY secret. The file is never sent.
    """
    from dpfact_flower.privacy.secure_sum.keys import new_signing_key

    check_name("--site", site)
    path = key.expanduser().absolute()
    if path.exists():
        raise SettingsError(f"{path}: exists; keys are never replaced: other sites rely on them")
    path.parent.mkdir(parents=True, exist_ok=True)
    create_once(path, new_signing_key())
    _show_key(path, site)
    say(
        "Put this line and the lines of all other sites into one file. In the site's settings, set "
        f"secure-peers to that file, and secure-key to {path}."
    )


@keys_app.command()
def show(
    file: Path, site: Annotated[str, Option(help="The site's name, if FILE is a site's key.")] = ""
) -> None:
    """Show the public line of a key, or the names and fingerprints in a peers file."""
    from dpfact_flower.privacy.secure_sum.keys import fingerprint
    from dpfact_flower.site.secure import read_peers

    path = file.expanduser().absolute()
    if site:
        check_name("--site", site)
        _show_key(path, site)
        return
    for name, public in read_peers(path).items():
        say(f"{name}: {fingerprint(public)}")


def _show_key(path: Path, site: str) -> None:
    from dpfact_flower.privacy.secure_sum.keys import fingerprint, public_text, read_public_key
    from dpfact_flower.site.secure import read_key_file

    text = public_text(read_key_file(path))
    say(f"{site} {text}\nfingerprint: {fingerprint(read_public_key(text))}")
