"""`DPFactClient`, a Flower NumPyClient: one round at a site, and what may be said about it.

The order of work is the privacy policy: check what is asked, and what it will cost, against what
the site allows; only then touch data; charge and keep the release on disk; only then send it. A
request that is repeated gets the kept bytes. Whatever goes wrong, the server learns a code, and one
and the same code for everything that goes wrong after data was touched.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.client import NumPyClient
from numpy.typing import NDArray

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.errors import (
    DPFactError,
    MessageError,
    PrivacyRefusedError,
    RoundFailedError,
    SettingsError,
)
from dpfact_flower.files import locked
from dpfact_flower.privacy import Release, account
from dpfact_flower.protocol import RoundRequest, SiteReply, public_reason
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site import RoundOutcome, check_fits, planned, run_round
from dpfact_flower.state import Answered, RoundMeasures, SiteStore, spent_before

_logger = logging.getLogger(__name__)
NUM_EXAMPLES = 1
"""Sent with every reply in place of the number of patients, which is nobody else's business."""


class RoundRefusedError(DPFactError):
    """What leaves a site about a round that failed: a code. Made by `DPFactClient.fit` alone."""

    code = "refused"


class DPFactClient(NumPyClient):
    """A hospital in a DPFact run.

    Parameters
    ----------
    data : SiteData
    settings : SiteSettings
        `state_dir` and `allow_privacy` must be given.
    simulation : bool
        Whether this process plays a site: then noise may be seeded.

    Raises
    ------
    SettingsError
        If a setting that a site must choose for itself is missing.
    """

    def __init__(self, data: SiteData, settings: SiteSettings, *, simulation: bool = False) -> None:
        if not simulation:
            _check_choices(settings)
        self._data = data
        self._settings = settings
        self._simulation = simulation
        self._site = settings.site or data.name
        self._root = Path(settings.state_dir).expanduser()
        self._fingerprint = data.tensor.fingerprint()

    def fit(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Answer one round: global feature factors in, released feature factors out.

        Raises
        ------
        RoundRefusedError
            For whatever reason; its text holds a code and nothing else.
        """
        try:
            request = RoundRequest.from_wire(parameters, config)
            release = self.answer(request)
        except Exception as error:  # nothing an error says may reach the server
            raise RoundRefusedError(log_privately(self._site, error)) from None
        arrays, reply = SiteReply(self._site, release.factors).to_wire()
        return list(arrays), NUM_EXAMPLES, dict(reply)

    def answer(self, request: RoundRequest) -> Release:
        """Compute, charge and keep the release for a request, or find it if it was made before.

        Raises
        ------
        DPFactError
            With the reason; `fit` keeps it at the site.
        """
        # Everything before the data is touched decides by public facts and the site's own record.
        self._check_allowed(request)
        self._check_vocabulary(request)
        check_fits(self._data.tensor, request.anchors)
        with locked(self._root / self._site):
            store = SiteStore(self._root, self._site, request.job, self._fingerprint)
            last = store.load()
            digest = request.digest()
            if last is not None and last.request == digest:
                _logger.info("round %d asked again: sending what was sent", request.round)
                return last.release
            self._check_follows(request, last)
            self._check_budget(request, last)
            outcome = self._compute(request, last)
            store.save(Answered(digest, request.terms(), outcome.state, outcome.release))
            self._note(store, outcome.measures)
        _logger.info("round %d: released (%s)", request.round, outcome.release.label)
        return outcome.release

    def get_parameters(self, config: Mapping[str, Any]) -> list[NDArray[Any]]:
        """Refuse: a site has no model to start others from; the server's public seed does that."""
        raise RoundRefusedError(public_reason(MessageError()))

    def evaluate(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Refuse: a loss is a function of the patients; a site keeps it (`history.jsonl`)."""
        raise RoundRefusedError(public_reason(PrivacyRefusedError()))

    def _check_allowed(self, request: RoundRequest) -> None:
        allowed = self._settings.allow_privacy.split(",")
        if request.privacy.privacy not in allowed:
            raise PrivacyRefusedError(
                f"the run asks for privacy {request.privacy.privacy!r}; this site's allow-privacy "
                f"is {self._settings.allow_privacy!r}"
            )
        for name, asked, most in (
            ("rank", request.solver.rank, self._settings.max_rank),
            ("tau", request.solver.tau, self._settings.max_tau),
        ):
            if asked > most:
                raise MessageError(f"{name}: the run asks for {asked}, this site's limit is {most}")

    def _check_vocabulary(self, request: RoundRequest) -> None:
        own = joint_digest(self._data.vocabularies)
        if request.vocabulary not in ("", own):
            raise MessageError(
                "the run's vocabularies are not this site's: their digests differ; "
                "prepare the site's data with the code lists of the run"
            )

    def _check_follows(self, request: RoundRequest, last: Answered | None) -> None:
        """Refuse a round that is over, and settings that change in the middle of a job."""
        if last is None:
            return
        if request.round <= last.state.round:
            raise MessageError(
                f"round {request.round} of job {request.job!r} is stale: this site has finished "
                f"round {last.state.round}"
            )
        if request.terms() != last.terms:
            raise MessageError(
                f"the settings of job {request.job!r} have changed since round "
                f"{last.state.round}; a change needs a new job"
            )

    def _check_budget(self, request: RoundRequest, last: Answered | None) -> None:
        """Count this round with all that the site has released, in whatever job."""
        modes = [vocabulary.name for vocabulary in self._data.vocabularies]
        events = planned(request, modes, simulation=self._simulation)
        limit = self._settings.max_epsilon
        if not limit or not events:
            return
        before = spent_before(self._root, self._site, other_than=request.job)
        own = last.state.events if last else ()
        total = account((*before, *own, *events), self._settings.budget_delta)
        if total.headline.epsilon > limit:
            raise PrivacyRefusedError(
                f"max-epsilon is {limit:g}; with this round the site would stand at "
                f"{total.headline}"
            )

    def _compute(self, request: RoundRequest, last: Answered | None) -> RoundOutcome:
        """Run the round; whatever fails in it leaves as one and the same code."""
        try:
            return run_round(
                self._data.tensor,
                last.state if last else None,
                self._localised(request),
                site=self._site,
                modes=[vocabulary.name for vocabulary in self._data.vocabularies],
                simulation=self._simulation,
            )
        except Exception as error:  # which error it is may depend on the patients
            log_privately(self._site, error)
            raise RoundFailedError(f"round {request.round} failed, see above") from None

    def _note(self, store: SiteStore, measures: RoundMeasures) -> None:
        """Keep the site's own measures; the release stands whether or not that works."""
        try:
            store.note(measures)
        except OSError as error:
            _logger.warning("history.jsonl cannot be written (%s)", type(error).__name__)

    def _localised(self, request: RoundRequest) -> RoundRequest:
        """The request with what the site decides for itself: its l2,1 weight."""
        if self._settings.site_mu < 0:
            return request
        # off = 0, or the run's relative weight would take the place of the site's own.
        own = replace(request.solver, mu=self._settings.site_mu, off=0.0)
        return replace(request, solver=own)


def _check_choices(settings: SiteSettings) -> None:
    """What a hospital must choose for itself: there is no default to fall back to."""
    for key, value in (
        ("state-dir", settings.state_dir),
        ("allow-privacy", settings.allow_privacy),
    ):
        if not value:
            raise SettingsError(f"{key}: must be set in the site's node config")
    if not Path(settings.state_dir).expanduser().is_absolute():
        raise SettingsError(
            f"state-dir: must be an absolute path, or the record of releases would depend on where "
            f"the process was started; got {settings.state_dir!r}"
        )
    noisy = settings.allow_privacy != "none"
    if noisy != (settings.max_epsilon > 0):
        raise SettingsError(
            "max-epsilon: must be above 0 where allow-privacy names a mode with noise, and 0 where "
            f"it is 'none', which no epsilon bounds; got {settings.max_epsilon:g} with "
            f"{settings.allow_privacy!r}"
        )
    if noisy and "none" in settings.allow_privacy.split(","):
        raise SettingsError("allow-privacy: 'none' beside a mode with noise would void max-epsilon")


def load_site(path: str | Path) -> SiteData:
    """A site's data file, kept in memory for as long as the file stays the same.

    Raises
    ------
    DataError
        If it is missing or invalid.
    """
    path = Path(path)
    try:
        stat = path.stat()
    except OSError:
        return SiteData.load(path)  # says what is wrong
    return _load_version(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)  # one process may play many sites
def _load_version(path: Path, modified: int, size: int) -> SiteData:
    return SiteData.load(path)


def log_privately(site: str, error: Exception) -> str:
    """Write an error to the site's own log; return the text that may leave.

    Our own errors hold no patient's value, so their text is logged. Anybody else's may quote the
    data ("could not convert ..."): of those, the kind and the place are logged, not the text.
    """
    if isinstance(error, DPFactError):
        _logger.error("site %s: %s: %s", site, error.code, error)
    else:
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        place = " > ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames)
        _logger.error("site %s: unexpected %s at %s", site, type(error).__name__, place)
    return public_reason(error)
