"""A site's part in secure sums: the site's keys, its replies in each stage, and its files.

Each hospital has its own long-term key and the public keys of all sites. Hospitals exchange the
public keys without the server, because a server that replaced a key could impersonate a site.
`dpfact_flower.privacy.secure_sum.site` implements the protocol. The job's folder contains the job's
key and the latest round's noisy vector. The site stores each file before it sends any reply that
depends on the file.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from dpfact_flower.errors import PrivacyRefusedError, SettingsError, StateError
from dpfact_flower.machine.files import check_own, check_private, private_folder, replacing
from dpfact_flower.machine.parsed import from_json, load_npz, parse_as, to_json
from dpfact_flower.privacy import Noise, Release, release_masked
from dpfact_flower.privacy.patient.releases import PlannedRelease
from dpfact_flower.privacy.patient.sharing import Sharing
from dpfact_flower.privacy.secure_sum import keys
from dpfact_flower.privacy.secure_sum import site as sums
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.hospital import Hospital
from dpfact_flower.site.round import stream
from dpfact_flower.wire.protocol import RoundRequest
from dpfact_flower.wire.secure import SecureStage, sealed_text

_JOB, _ROUND = "secure-job.json", "secure-round.npz"
_PENDING = ".secure-job"  # no job can have this name
_NEW_JOB = "ask the centre for a new job"


@dataclass(frozen=True)
class SecureRound:
    """One stage of a secure sum. To create and check an instance, call `secure_round`.

    `job` has this site's key for the job. `allowed` identifies the sum (None in the stage `keys`).
    """

    files: "_Files"
    job: sums.JobSecrets
    stage: SecureStage
    allowed: sums.AllowedQuestion | None
    noise: Noise

    @property
    def vector(self) -> NDArray[np.int64]:
        """The round's noisy vector. The site has already charged the vector's privacy cost."""
        assert self.allowed is not None
        if self.allowed.state is None:
            raise StateError(f"{self.files.folder}: the vector for the sum is missing; {_NEW_JOB}")
        return self.allowed.state.noisy

    def keys(self) -> Release:
        """Store this site's key for the job, and return the public part of the key."""
        self.files.keep_pending(self.job)
        return release_masked(self.job.member.key, self.job.member.signature)

    def answer(self, draw: Callable[[], NDArray[np.int64]]) -> Release:
        """Store the round's new state on disk, and then return the masked vector."""
        assert self.allowed is not None
        state = sums.answer(self.allowed, draw, self.noise.random_bytes)
        if state is not self.allowed.state:
            self.files.keep(self.job, state)
        answer = sums.masked(self.job, state)
        return release_masked(answer.context, answer.words, sealed_text(answer.sealed))

    def opened(self) -> Release:
        """Store and return the secrets that the server needs to unmask the sum."""
        assert self.allowed is not None
        context = keys.context_of(self.job.terms, self.allowed.question)
        state = sums.opened(self.job, self.allowed.state, context, self.stage.sealed)
        if state is not self.allowed.state:
            self.files.keep(self.job, state)
        assert state.opening is not None
        return release_masked(state.opening.seed, sealed_text(state.opening.shares))


def secure_round(
    hospital: Hospital, request: RoundRequest, planned: PlannedRelease, *, answered: bool
) -> SecureRound | None:
    """Check a stage of a secure sum against the hospital's settings, keys and earlier answers.

    Return None for a preflight, whose request has no stage. Use the stored state only if the site
    has already answered this request (`answered`). Do not read patients' data.
    """
    stage, sharing, name = request.secure, planned.sharing, hospital.name
    assert sharing is not None
    if hospital.simulation:
        keyring = _simulated_keyring(stage.names if stage else (), name)
    else:
        keyring = keyring_of(hospital.settings, name)
    _check_sharing(sharing, hospital, keyring)
    if stage is None:
        return None
    noise = Noise.from_settings(
        request.privacy, stream=stream(request, name), simulation=hospital.simulation
    )
    files = _Files(hospital.folder / request.job, durable=not hospital.simulation)
    terms = sharing.terms(request.job, request.terms, stage.names)
    state = files.round() if answered else None
    job = files.job(terms)
    if job is None:
        if state is not None:
            raise PrivacyRefusedError("terms: the job began with different terms; start a new job")
        if stage.stage != "keys":
            raise StateError(
                "secure sum: this site has no key for this job, perhaps because another run began "
                f"at the same time. After the other run's first round, {_NEW_JOB}"
            )
        job = sums.join(terms, name, keyring.own, keyring.peers, noise.random_bytes)
    if stage.stage == "keys":
        return SecureRound(files, job, stage, None, noise)
    members = tuple(member for member in stage.members if member.site in stage.asked)
    question = planned.question(request.digest, request.privacy.patients, stage.attempt, members)
    if stage.stage == "open" and (state is None or question != state.question):
        raise PrivacyRefusedError("secure sum: only the last attempt of a round can be opened")
    allowed = sums.check_question(job, state, question, keyring.peers)
    return SecureRound(files, job, stage, allowed, noise)


def _check_sharing(sharing: Sharing, hospital: Hospital, keyring: "Keyring") -> None:
    """Refuse secure sums that do not meet the hospital's own limits."""
    settings = hospital.settings
    tenth = 1 if hospital.simulation else math.ceil(len(keyring.peers) / 10)
    for key, value, least in (
        ("sites", sharing.sites, settings.secure_min_sites),
        ("colluding", sharing.colluding, settings.secure_min_colluding or tenth),
    ):
        if value < least:
            raise PrivacyRefusedError(
                f"secure-{key} is {value} in this run; this site's secure-min-{key} is {least}"
            )
    if not (settings.max_epsilon_alone or hospital.simulation):
        raise PrivacyRefusedError(
            "max-epsilon-alone: set the largest epsilon that the hospital accepts in secure sums "
            "if all other sites collude"
        )


class _Files(NamedTuple):
    """The files that contain a job's secrets.

    A new key is stored in a file that all jobs share, and is replaced by the next job's new key.
    The key is moved to the job's folder when the site computes its first masked vector in the job.
    If each new key had its own file, a server could fill the disk by requesting keys for new jobs.
    """

    folder: Path
    durable: bool

    @property
    def _pending(self) -> Path:
        return self.folder.parent / _PENDING

    def job(self, terms: keys.Terms) -> sums.JobSecrets | None:
        """Return the stored key for a job with these `terms`, or None if there is no such key."""
        candidates = [self._kept(self.folder / _JOB)]
        with suppress(StateError):  # a damaged pending key must not stop all jobs
            candidates.append(self._kept(self._pending))
        return next((job for job in candidates if job and job.terms == terms), None)

    def _kept(self, path: Path) -> sums.JobSecrets | None:
        check_own(path)
        if not path.exists():
            return None
        try:
            return parse_as(sums.JobSecrets, from_json(path.read_bytes()))
        except (OSError, ValueError):
            raise StateError(f"{path}: damaged; {_NEW_JOB}") from None

    def round(self) -> sums.RoundState | None:
        """Return the state after the site's last answer, or None if no answer is stored."""
        path = self.folder / _ROUND
        check_own(path)
        if not path.exists():
            return None
        try:
            arrays = load_npz(path, ["head", "noisy"])
            state = parse_as(sums.RoundState, from_json(str(arrays["head"])))
        except ValueError:  # DataError is a ValueError
            raise StateError(f"{path}: damaged; {_NEW_JOB}") from None
        return replace(state, noisy=arrays["noisy"])

    def keep_pending(self, job: sums.JobSecrets) -> None:
        """Store a job's new key in the shared file, replacing any other job's key in this file."""
        if self._kept(self.folder / _JOB) != job:
            private_folder(self._pending.parent)
            self._write(self._pending, job)

    def keep(self, job: sums.JobSecrets, state: sums.RoundState) -> None:
        """Store a round's state, and move the job's key to the job's folder."""
        if self._kept(self.folder / _JOB) != job:
            self._write(self.folder / _JOB, job)
            self._pending.unlink(missing_ok=True)  # the key is now in the job's folder
        with replacing(self.folder / _ROUND, durable=self.durable) as file:
            np.savez(file, noisy=state.noisy, head=np.array(to_json(state, ["noisy"]).decode()))

    def _write(self, path: Path, job: sums.JobSecrets) -> None:
        with replacing(path, durable=self.durable) as file:
            file.write(to_json(job))


class Keyring(NamedTuple):
    """A site's long-term key, and a mapping from site names to the sites' public keys."""

    own: Ed25519PrivateKey
    peers: Mapping[str, bytes]


def keyring_of(settings: SiteSettings, site: str) -> Keyring:
    """Read the keys from the files named in a hospital's settings."""
    for name, value in (("key", settings.secure_key), ("peers", settings.secure_peers)):
        if not Path(value).is_absolute():
            raise SettingsError(
                f"secure-{name}: must be set, to an absolute path, to take part in secure sums; "
                "`dpfact keys` makes the file"
            )
    own_key = read_key_file(Path(settings.secure_key))
    peers = read_peers(Path(settings.secure_peers))
    if peers.get(site) != own_key.public_key().public_bytes_raw():
        raise SettingsError(
            f"secure-peers: {settings.secure_peers} must have this site's own name, {site!r}, with "
            "the public key of secure-key"
        )
    return Keyring(own_key, peers)


def _simulated_keyring(sites: Sequence[str], site: str) -> Keyring:
    """Derive insecure keys from site names, for simulations only."""
    seeds = {name: hashlib.sha256(name.encode()).digest() for name in (site, *sites)}
    own = {name: Ed25519PrivateKey.from_private_bytes(seed) for name, seed in seeds.items()}
    return Keyring(own[site], {name: own[name].public_key().public_bytes_raw() for name in sites})


def read_key_file(path: Path) -> Ed25519PrivateKey:
    """Read a signing key from a file that only its owner can read."""
    check_private(path)
    return keys.read_signing_key(_read(path))


def read_peers(path: Path) -> dict[str, bytes]:
    """Read names and public keys from lines of the form ``NAME KEY``. A `#` begins a comment."""
    check_own(path, reading=True)
    peers: dict[str, bytes] = {}
    lines = _read(path).decode(errors="replace").split("\n")  # no other character ends a line
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[0] in peers:
            raise SettingsError(f"{path}: line {number} must be NAME KEY, each name once")
        try:
            peers[words[0]] = keys.read_public_key(words[1])
        except SettingsError as error:
            raise SettingsError(f"{path}: line {number}: {error}") from None
    return peers


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from None
