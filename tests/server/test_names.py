"""The hospital of each node: a registered name counts, or else the first given name."""

import pytest

from dpfact_flower.server.readiness import Readiness, SiteNames


def names(**registered: int) -> SiteNames:
    it = SiteNames()
    it.registered = {node: name for name, node in registered.items()}
    return it


def faults(it: SiteNames, said: dict[int, str]) -> dict[int, str]:
    found = it.checked([Readiness(node, site) for node, site in said.items()])
    return {each.node: each.fault for each in found if each.fault}


def test_two_nodes_of_one_name_are_both_at_fault_where_nothing_tells_them_apart():
    found = faults(names(), {2: "north", 3: "south", 4: "north"})
    assert list(found) == [2, 4]
    assert "calls itself 'north', as node 4 does" in found[2]
    assert "calls itself 'north', as node 2 does" in found[4]


@pytest.mark.parametrize("liar", [2, 9])
def test_the_one_whose_key_is_registered_with_the_name_has_it(liar):
    it = names(north=5)
    assert list(faults(it, {5: "north", liar: "north"})) == [liar]
    assert it.of(5) == "north"
    assert it.of(liar) == ""


def test_no_name_but_the_registered_one_is_taken_whether_its_owner_is_there_or_not():
    it = names(north=5, south=9)
    says = "calls itself 'north', but its key is registered as 'south'"
    assert faults(it, {9: "north"}) == {9: says}
    assert it.refusal(9, "north", connected=[9])
    assert it.refusal(5, "south", connected=[5])
    assert it.refusal(9, "south", connected=[9]) == ""
    assert it.refusal(7, "north", connected=[7])  # without a registration


def test_two_keys_with_one_name_are_told_from_one_key_of_two():
    it = SiteNames()
    it.registered = {3: "north", 8: "north"}
    assert list(faults(it, {3: "north", 8: "north"})) == [3, 8]
    assert faults(it, {8: "north"}) == {}  # the other key's node is lost permanently


def test_a_site_that_refuses_has_the_name_that_is_registered():
    (found,) = names(north=5).checked([Readiness(5, fault="error 2: dpfact:state")])
    assert found.message.startswith("north (node 5): ")


def test_who_answered_first_keeps_its_name_and_one_that_came_back_has_it_again():
    it = names()
    assert it.refusal(2, "north", connected=[2, 3]) == ""
    assert "as node 2 does" in it.refusal(3, "north", connected=[2, 3])
    assert it.refusal(4, "north", connected=[3, 4]) == ""  # node 2 is lost
    assert (it.of(2), it.of(4)) == ("", "north")


def test_nobody_changes_its_name_while_the_one_that_has_it_is_away():
    """Its reply would be used instead, and the other site's ledger would seem to lack a round."""
    it = names()
    assert faults(it, {2: "north", 3: "east", 4: "south"}) == {}
    for node, own, other in (3, "east", "north"), (2, "north", "east"):
        assert f"but called itself {own!r} before" in it.refusal(node, other, connected=[node])
    assert (it.of(2), it.of(3)) == ("north", "east")
    assert it.refusal(7, "".join("north"), connected=[3]) == ""  # itself, with another number
    assert [it.of(node) for node in (2, 3, 4, 7)] == ["", "east", "south", "north"]


def test_a_missing_registration_is_warned_of(caplog):
    names(north=5).checked([Readiness(5, "north")])
    names(north=5).checked([Readiness(5, "north"), Readiness(6, "south")])
    (record,) = caplog.records
    assert "1 of 2 SuperNodes have no registered name" in record.getMessage()
