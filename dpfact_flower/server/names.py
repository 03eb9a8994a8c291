"""Which node is which hospital: by its key's registration, or else by what it calls itself.

Whoever registers a key at the SuperLink gives it the hospital's name, which Flower keeps beside the
key. A hospital that calls itself otherwise is refused: under another's name it would make that one
pay for replies that nobody can use. Where a key was registered without a name, a node has the name
that it gives first, for as long as the process lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from dpfact_flower.server.readiness import Readiness

_logger = logging.getLogger(__name__)
_REGISTER = "register each key with its hospital's name: flwr supernode register --name"


class SiteNames:
    """Names of a run's nodes.

    Attributes
    ----------
    registered : mapping of int to str
        Of the nodes whose keys are registered with a name; the caller keeps it up to date.
    """

    def __init__(self) -> None:
        self.registered: Mapping[int, str] = {}
        self._said: dict[int, str] = {}

    def of(self, node: int) -> str:
        """The site that a node is; empty where that is not known."""
        return self.registered.get(node) or self._said.get(node, "")

    def who(self, node: int) -> str:
        """For people: the name, if it is known, and the number."""
        name = self.of(node)
        return f"{name} (node {node})" if name else f"node {node}"

    def refusal(self, node: int, site: str, others: Collection[int]) -> str:
        """Why a node may not call itself so beside these others; empty, and noted, if it may."""
        if fault := self._fault(node, site, {each: self.of(each) for each in others}):
            return fault
        self._said = {each: name for each, name in self._said.items() if name != site}
        self._said[node] = site  # a site that came back without a key has a new number
        return ""

    def checked(self, found: Sequence[Readiness]) -> list[Readiness]:
        """What sites said before anybody paid, with a fault where a name is not theirs alone."""
        claims = {each.node: each.site for each in found if each.site}
        named = [self._named(each, claims) for each in found]
        self._said |= {each.node: each.site for each in named if each.site and not each.fault}
        if free := [each for each in found if each.node not in self.registered]:
            _logger.warning(
                "preflight: %d of %d SuperNodes have no registered name, so nothing binds what "
                "they call themselves to their keys; %s", len(free), len(found), _REGISTER,
            )  # fmt: skip
        return named

    def _named(self, each: Readiness, claims: Mapping[int, str]) -> Readiness:
        fault = each.fault or self._fault(each.node, each.site, claims)
        return replace(each, site=self.of(each.node) if fault else each.site, fault=fault)

    def _fault(self, node: int, site: str, claims: Mapping[int, str]) -> str:
        mine, before = self.registered.get(node), self._said.get(node)
        if mine and site and mine != site:
            return f"calls itself {site!r}, and its key is registered as {mine!r}"
        if not mine and before and site and before != site:
            return f"calls itself {site!r}, and called itself {before!r} before; {_REGISTER}"
        for other in sorted({*claims, *self.registered} - {node}):
            theirs = self.registered.get(other)
            counts = theirs and other in claims if mine else theirs or other in claims
            if site and counts and (theirs or claims[other]) == site:
                return f"calls itself {site!r}, as node {other} does; {_REGISTER}"
        return ""
