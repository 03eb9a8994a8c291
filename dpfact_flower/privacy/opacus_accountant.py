"""Provide a zCDP accountant for Opacus.

Importing this module imports Opacus and therefore torch. Once `register` has been called, Opacus
accepts the name ``"zcdp"``, as in ``PrivacyEngine(accountant="zcdp")`` or
``get_noise_multiplier(..., accountant="zcdp")``.

A full-batch step (sample rate 1) costs 1 / (2 noise_multiplier**2) in zCDP. `epsilon_zcdp_tight`
converts the total cost to epsilon. In zCDP, subsampling does not reduce the cost. If any step has a
sample rate below 1, the accountant uses Opacus' RDP analysis for all steps.
"""

import logging
import math

from dpfact_flower.errors import MissingDependencyError, SettingsError
from dpfact_flower.privacy.conversions import RDP_ORDERS, epsilon_zcdp_tight, log_of_inverse
from dpfact_flower.privacy.release import at_least_one, positive

_root = logging.getLogger()
_handlers, _level = list(_root.handlers), _root.level
try:
    from opacus.accountants import IAccountant, register_accountant
    from opacus.accountants.analysis import rdp as analysis
except ImportError:
    raise MissingDependencyError(
        "Opacus is not installed; install it with: pip install 'dpfact-flower[opacus]'"
    ) from None
finally:  # undo Opacus' setup of the root logger, which would print our log lines twice
    _root.handlers[:] = _handlers
    _root.setLevel(_level)

MECHANISM = "zcdp"
# Tolerance for rounding errors: a rate of 1 may be computed as 1/batches * accumulated steps.
_ROUNDING = 1e-9
_Step = tuple[float, float, int]


class ZCDPAccountant(IAccountant):  # type: ignore[misc]  # Opacus is not typed
    """A zCDP accountant. Neighbouring data sets differ by one added or removed sample."""

    def __init__(self) -> None:
        self.history: list[_Step] = []  # in Opacus' format, because Opacus' calibration sets it

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Record a step on a full batch (`sample_rate` 1) or on a Poisson sample (below 1)."""
        multiplier, rate, steps = _checked_step((noise_multiplier, sample_rate, 1))
        if self.history and tuple(self.history[-1][:2]) == (multiplier, rate):
            self.history[-1] = (multiplier, rate, self.history[-1][2] + steps)
        else:
            self.history.append((multiplier, rate, steps))

    def get_epsilon(self, delta: float) -> float:
        """Return the epsilon spent so far, or infinity if any step had no noise."""
        log_of_inverse(delta)  # refuses a delta outside (0, 1)
        history = [_checked_step(step) for step in self.history]
        if not history:
            return 0.0
        if any(multiplier == 0 for multiplier, _, _ in history):
            return math.inf
        if all(rate == 1 for _, rate, _ in history):
            rho = math.fsum(steps / (2 * multiplier**2) for multiplier, _, steps in history)
            return epsilon_zcdp_tight(rho, delta)
        costs = sum(
            analysis.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=RDP_ORDERS)
            for noise, rate, steps in history
        )
        epsilon, _ = analysis.get_privacy_spent(orders=RDP_ORDERS, rdp=costs, delta=delta)
        return max(0.0, float(epsilon))  # negative if delta alone suffices

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name by which Opacus knows this accountant."""
        return MECHANISM


def register() -> None:
    """Register ``"zcdp"`` with Opacus. Further calls have no effect."""
    register_accountant(MECHANISM, ZCDPAccountant, force=True)


def _checked_step(step: _Step) -> _Step:
    multiplier, rate, steps = step
    if multiplier != 0:
        multiplier = positive("noise_multiplier", multiplier)
    rate = positive("sample_rate", rate)
    if rate > 1 + _ROUNDING:
        raise SettingsError(f"sample_rate: must lie in (0, 1], got {rate!r}")
    if rate > 1 - _ROUNDING:
        rate = 1.0
    return float(multiplier), rate, at_least_one("steps", steps)
