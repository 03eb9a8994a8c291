"""Local solvers, which compute a site's factors from the site's data and add no noise."""

from dpfact_flower.solver.objective import LocalProblem, LocalResult
from dpfact_flower.solver.solvers import solve

__all__ = ["LocalProblem", "LocalResult", "solve"]
