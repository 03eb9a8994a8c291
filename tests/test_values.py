"""Values passed between folders: they are not changed, and arrays are not compared as a whole."""

import dataclasses
import importlib
import re

import pytest

from tests.test_house import MODULES

CLASSES = {
    f"{module}.{name}": value
    for module in MODULES
    if module.split(".")[0] in ("settings", "privacy", "site", "server", "wire", "data")
    for name, value in vars(importlib.import_module(f"dpfact_flower.{module}")).items()
    if dataclasses.is_dataclass(value) and value.__module__ == f"dpfact_flower.{module}"
    if not name.startswith("_")  # private to a module
}
ARRAYS = re.compile(r"\b(Array|NDArray|ndarray|Factors|SparseTensor|Release|SiteState|SiteData)\b")
"""Types of fields that are or contain arrays. ``==`` of two arrays gives no single truth value, so
such objects are equal only to themselves."""


@pytest.mark.parametrize("name", CLASSES)
def test_values_cannot_be_changed(name):
    assert CLASSES[name].__dataclass_params__.frozen


@pytest.mark.parametrize("name", CLASSES)
def test_what_holds_arrays_is_compared_by_identity_and_all_else_by_its_fields(name):
    holds = any(ARRAYS.search(str(field.type)) for field in dataclasses.fields(CLASSES[name]))
    assert CLASSES[name].__dataclass_params__.eq is not holds
