"""Counterexamples to DPFact's proof: `simulation/studies/bound.py` gives the documented values."""

import numpy as np
import pytest

from dpfact_flower.solver.kernels.order import visits
from dpfact_flower.tensor.stack import row_offsets
from simulation.studies import bound as script
from tests.problems import visit_one_by_one


def plain_pass(instance, counts, rows):
    """Run one pass of Algorithm 1, lines 4 to 9, in the order of `rows`."""
    s = instance.settings
    value = dict(zip(map(tuple, instance.cells.tolist()), counts, strict=True))
    cells = rows - row_offsets([len(factor) for factor in instance.start])[:-1]
    return visit_one_by_one(
        instance.start, instance.start[1:], cells, [value[tuple(c)] for c in cells.tolist()],
        eta=s.eta, gamma=0.0, clip=s.clip, floor=0.0 if s.nonnegative else -np.inf,
    )  # fmt: skip


def below_two_over_beta(instance, *results):
    reached = [instance.start, *(result.factors for result in results)]
    betas = [script.smoothness(factors, instance.settings.gamma) for factors in reached]
    return instance.settings.eta < 2 / max(betas)


@pytest.mark.parametrize(("nonnegative", "least"), [(False, 9.99), (True, 5.0)])
def test_one_entry_moves_a_factor_further_than_the_bound_in_one_pass(nonnegative, least):
    instance = script.joint_pass(10, nonnegative=nonnegative)
    seed = script.first_seed(instance)
    results = instance.run(seed)
    assert np.count_nonzero(instance.counts != instance.changed) == 1
    assert below_two_over_beta(instance, *results)
    assert script.distance(*results) > least * instance.bound
    # Algorithm 1 itself causes this, not the compiled code.
    rows, _ = next(visits(instance.tensors()[0], 0, np.random.default_rng((seed,))))
    for counts, result in zip((instance.counts, instance.changed), results, strict=True):
        for plain, compiled in zip(plain_pass(instance, counts, rows), result.factors, strict=True):
            assert np.abs(compiled - plain).max() < 1e-3 * instance.bound


def test_the_excess_grows_with_patients_up_to_what_every_visit_together_may_move():
    ratios = []
    for patients in (1, 5, 20, 50):
        instance = script.joint_pass(patients, nonnegative=False)
        first, second = instance.run(script.first_seed(instance))
        ratios.append(script.distance(first, second) / instance.bound)
        # The nearest valid bound: one clipped gradient, in either direction, for each visit.
        assert ratios[-1] <= len(instance.cells) * (1 + 1e-5)
    np.testing.assert_allclose(ratios, [1, 5, 20, 50], rtol=3e-3)


def test_carried_state_leaves_the_bound_behind_unless_the_pull_holds_it():
    ratios = script.carried_state(0.05)
    assert ratios[0] < 1 < 4 < ratios[9] < ratios[29]
    assert ratios[29] > 16
    assert max(script.carried_state(5.0)) < 1  # as documented, the bound is not always exceeded


@pytest.mark.parametrize("gamma", [0.05, 5.0])
def test_carried_state_keeps_the_step_size_the_theorem_asks_for(gamma):
    instance = script.cohort(gamma=gamma)
    starts = (instance.start, instance.start)
    for number in range(1, 31):
        results = instance.run(number, starts=starts)
        starts = tuple(result.factors for result in results)
        assert below_two_over_beta(instance, *results)


def test_the_shrinkage_step_couples_patients_that_share_no_code():
    alone, coupled = script.two_patients(0.0), script.two_patients(75.0)
    first, second = alone.run(0)
    for mode in range(3):
        assert np.array_equal(first.factors[mode][0], second.factors[mode][0])
    first, second = coupled.run(0)
    assert below_two_over_beta(coupled, first, second)
    assert abs(first.factors[0][0] - second.factors[0][0]).max() > 0.1
    assert abs(first.factors[1][0] - second.factors[1][0]).max() > 1e-3


def test_a_filled_zero_changes_length_order_and_result_of_a_pass():
    instance, filled = script.with_zero_filled()
    tensor, _ = instance.tensors()
    difference = filled.to_dense() - tensor.to_dense()
    assert np.count_nonzero(difference) == 1
    assert difference.max() == 1
    length, kept, moved = script.filled_zero()
    assert length.measured == length.claimed + 1
    assert kept.measured < 0.05 * kept.claimed
    assert moved.ratio > 1.03


def test_without_a_clip_the_distance_follows_the_count():
    small, large = script.no_lipschitz()
    assert small.ratio > 6
    assert large.ratio == pytest.approx(11 * small.ratio, rel=1e-4)  # (300 - 3) / (30 - 3)


def test_a_patient_of_m_entries_loses_m_squared_times_rho():
    rows = script.patient_unit()
    for rho in rows[::2]:
        m = int(rho.shows.rsplit(" ", 1)[1])
        assert m > 20
        assert rho.ratio == pytest.approx(m**2)
    assert rows[1].claimed == pytest.approx(1.254, abs=1e-3)
    assert rows[1].measured > 50


def test_the_average_of_sites_understates_what_the_first_site_lost():
    rho, delta = script.parallel_sites()
    assert rho.ratio > 9
    assert delta.measured > 1000 * delta.claimed  # of site 1 at the epsilon claimed for all
