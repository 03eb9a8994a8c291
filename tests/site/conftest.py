"""Fixtures of the tests of a site."""

from pathlib import Path

import pytest

from dpfact_flower.data.site_data import Cohort, SiteData
from tests.site.federation import World, neighbours


@pytest.fixture
def data(cohort: Cohort) -> SiteData:
    return cohort.sites[0]


@pytest.fixture
def world(data: SiteData, tmp_path: Path) -> World:
    return World(data, tmp_path / "state")


@pytest.fixture
def worlds(data: SiteData, tmp_path: Path) -> list[World]:
    """Two sites, one of which has an additional patient with every code."""
    return neighbours(data, tmp_path)
