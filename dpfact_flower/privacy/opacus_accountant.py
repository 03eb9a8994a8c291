"""Provide a zCDP accountant for Opacus.

Importing this module imports Opacus and therefore torch. After `register`, Opacus accepts the name
``"zcdp"``: ``PrivacyEngine(accountant="zcdp")``, ``get_noise_multiplier(..., accountant="zcdp")``.

Full-batch steps (sample rate 1) cost 1 / (2 noise_multiplier**2) in zCDP. Epsilon comes from the
tight zCDP conversion over all orders, while Opacus' RDP tries a fixed list of orders. Under zCDP,
subsampling does not reduce the cost of a Poisson-subsampled Gaussian. A history with any sample
rate below 1 is therefore composed as a whole by Opacus' RDP analysis.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpfact_flower.errors import MissingDependencyError, SettingsError
from dpfact_flower.privacy.conversions import RDP_ORDERS, compose_serial, epsilon_zcdp_tight
from dpfact_flower.privacy.events import at_least_one, positive

_root = logging.getLogger()
_handlers, _level = list(_root.handlers), _root.level
try:
    from opacus.accountants import IAccountant, create_accountant, register_accountant
    from opacus.accountants.analysis import rdp as analysis
except ImportError:
    raise MissingDependencyError(
        "Opacus is not installed; install it with: pip install 'dpfact-flower[opacus]'"
    ) from None
finally:  # undo Opacus' setup of the root logger, which would print our lines twice
    _root.handlers[:] = _handlers
    _root.setLevel(_level)

MECHANISM = "zcdp"
# A sample rate is computed as 1/batches * accumulated steps, so rounding can make it differ from 1.
_ROUNDING = 1e-9

Step = tuple[float, float, int]


class ZCDPAccountant(IAccountant):  # type: ignore[misc]  # Opacus is not typed
    """Opacus accountant under zCDP, for adding or removing one sample.

    Attributes
    ----------
    history : list of (noise multiplier, sample rate, steps)
        History as in Opacus' own accountants. Opacus' calibration sets it directly.
    """

    def __init__(self) -> None:
        self.history: list[Step] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Charge one step.

        The multiplier is the noise's standard deviation divided by the clipping norm; a multiplier
        of 0 costs infinity. A rate of 1 is the full batch, and a smaller rate is Poisson sampling.
        """
        multiplier, rate, _ = _checked_step((noise_multiplier, sample_rate, 1))
        if self.history and tuple(self.history[-1][:2]) == (multiplier, rate):
            self.history[-1] = (multiplier, rate, self.history[-1][2] + 1)
        else:
            self.history.append((multiplier, rate, 1))

    def get_epsilon(self, delta: float, **kwargs: Any) -> float:
        """Return the epsilon spent so far.

        Epsilon is 0 before the first step, and infinity after a step without noise.
        """
        if kwargs:
            raise SettingsError(f"zcdp accountant takes no options; got {', '.join(kwargs)}")
        if positive("delta", delta) >= 1:
            raise SettingsError(f"delta: must lie in (0, 1), got {delta!r}")
        history = [_checked_step(step) for step in self.history]
        if not history:
            return 0.0
        if any(multiplier == 0 for multiplier, _, _ in history):
            return math.inf
        if all(rate == 1 for _, rate, _ in history):
            rho = compose_serial(steps / (2 * multiplier**2) for multiplier, _, steps in history)
            return epsilon_zcdp_tight(rho, delta)
        costs = sum(
            analysis.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=RDP_ORDERS)
            for noise, rate, steps in history
        )
        epsilon, _ = analysis.get_privacy_spent(orders=RDP_ORDERS, rdp=costs, delta=delta)
        return max(0.0, float(epsilon))  # below 0 if delta alone covers the cost

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name under which `register` registers the class."""
        return MECHANISM

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the history of `state_dict`. An invalid one leaves the current history unchanged."""
        before = self.history
        super().load_state_dict(state_dict)
        try:
            self.history = [_checked_step(step) for step in self.history]
        except SettingsError:
            self.history = before
            raise


def register() -> None:
    """Register ``"zcdp"`` with Opacus. Further calls have no effect."""
    try:
        register_accountant(MECHANISM, ZCDPAccountant)
    except ValueError:  # the name is already registered
        if type(create_accountant(MECHANISM)) is not ZCDPAccountant:
            raise SettingsError(
                f"Opacus already has an accountant {MECHANISM!r} of another class"
            ) from None


def _checked_step(step: Sequence[Any]) -> Step:
    try:
        multiplier, rate, steps = step
    except (TypeError, ValueError):
        raise SettingsError(
            "history: each step needs a noise multiplier, a sample rate and a number of steps"
        ) from None
    if multiplier != 0:
        multiplier = positive("noise_multiplier", multiplier)
    rate = positive("sample_rate", rate)
    if rate > 1 + _ROUNDING:
        raise SettingsError(f"sample_rate: must lie in (0, 1], got {rate!r}")
    if rate > 1 - _ROUNDING:
        rate = 1.0
    return float(multiplier), rate, at_least_one("steps", steps)
