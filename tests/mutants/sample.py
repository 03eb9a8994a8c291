"""Which mutants there are, by cosmic-ray, and a sample of them.

A line that holds an addition has eleven mutants (one an operator), and one that holds a comparison
five, most of them gross. So places are drawn, and of each place's mutants one.
"""

from __future__ import annotations

import ast
import difflib
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec


@dataclass(frozen=True)
class Mutant:
    """A change of one token.

    Attributes
    ----------
    spec : MutationSpec
        cosmic-ray's own, with a path relative to the checkout.
    line : int
        From 1.
    before, after : str
        The lines that differ, without their indentation.
    """

    spec: MutationSpec
    line: int
    before: str
    after: str

    @property
    def path(self) -> Path:
        """Of the module, relative to the checkout."""
        return self.spec.module_path


def sample(root: Path, rooms: Sequence[Path], size: int, seed: int) -> tuple[list[Mutant], int]:
    """Draw mutants that could change what the code does.

    Parameters
    ----------
    root : Path
        Of the checkout; the working directory too.
    rooms : sequence of Path
        Folders of the package, relative to `root`.
    size : int
        At most.
    seed : int

    Returns
    -------
    mutants : list of Mutant
        Sorted by place.
    places : int
        Among how many they were drawn.
    """
    places = defaultdict(list)
    for spec in _specs(root, rooms):
        places[spec.module_path, spec.start_pos].append(spec)
    rng = random.Random(seed)
    order = sorted(places)
    rng.shuffle(order)
    drawn: list[Mutant] = []
    for place in order:
        if len(drawn) == size:
            break
        choices = places[place]
        rng.shuffle(choices)
        drawn += [mutant for spec in choices if (mutant := mutant_of(root, spec))][:1]
    return sorted(drawn, key=lambda mutant: (mutant.path, mutant.line)), len(order)


def _specs(root: Path, rooms: Sequence[Path]) -> list[MutationSpec]:
    modules = sorted(
        path.relative_to(root) for room in rooms for path in (root / room).rglob("*.py")
    )
    with use_db(root / "mutants.sqlite", WorkDB.Mode.create) as session:
        init(modules, session, {})
        specs = [mutation for item in session.work_items for mutation in item.mutations]
    # The session keeps no order.
    return sorted(specs, key=lambda s: (s.module_path, s.start_pos, s.operator_name, s.occurrence))


def mutant_of(root: Path, spec: MutationSpec) -> Mutant | None:
    """The mutant, or None if it is no program or says the same as the module."""
    source = (root / spec.module_path).read_text(encoding="utf-8")
    operator = get_operator(spec.operator_name)(**spec.operator_args)
    mutated = mutate_code(source, operator, spec.occurrence)
    if mutated is None or says_the_same(source, mutated):
        return None
    lines = difflib.unified_diff(source.splitlines(), mutated.splitlines(), n=0, lineterm="")
    changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    before, after = (
        "\n".join(line[1:].strip() for line in changed if line[0] == sign) for sign in "-+"
    )
    return Mutant(spec, spec.start_pos[0], before, after)


def says_the_same(source: str, mutated: str) -> bool:
    """Whether two modules differ in nothing that runs, or the second is no program.

    Annotations are not evaluated (``from __future__ import annotations``), what a log line says is
    its reader's business, a kernel that is not compiled gives the same values, and whether
    arguments must be named is for those who call.
    """
    try:
        return _bare(source) == _bare(mutated)
    except SyntaxError:
        return True


def _bare(source: str) -> str:
    return ast.dump(_Bare().visit(ast.parse(source)))


class _Bare(ast.NodeTransformer):
    """Takes away annotations, `*` and `/` among parameters, logs, and that a kernel is compiled."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        # What `*` and `/` say of how arguments may be given, no call that is right depends on.
        node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
        node.defaults = [value for value in (*node.defaults, *node.kw_defaults) if value]
        node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        node.decorator_list = [d for d in node.decorator_list if "compiled" not in ast.unparse(d)]
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node.func:
            case ast.Attribute(value=ast.Name("_logger")):
                return ast.Constant(None)
        return self.generic_visit(node)
