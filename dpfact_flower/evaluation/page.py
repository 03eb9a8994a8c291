"""Pages: single HTML files that need no network and forbid the browser to load anything.

The Content-Security-Policy allows only the page's own script, by its hash. The same values give the
same bytes. matplotlib and Jinja2 are imported only here, because a site must not wait for them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfact_flower.data.icd import SYSTEMS
from dpfact_flower.errors import DataError, DPFactError, MissingDependencyError
from dpfact_flower.evaluation import formatting
from dpfact_flower.machine.files import replacing
from dpfact_flower.privacy import rounded_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FOLDER = Path(__file__).parent / "templates"
_WIDTH = 9.6
"""Width of figures, in inches."""


def check_libraries() -> None:
    """Refuse if matplotlib or Jinja2 is not installed."""
    try:
        import jinja2  # noqa: F401, PLC0415
        import matplotlib  # noqa: F401, PLC0415
    except ImportError as error:
        raise MissingDependencyError(
            f'{error.name} is not installed; a report needs: pip install "dpfact-flower[report]"'
        ) from None


@contextmanager
def belonging(folder: Path) -> Iterator[None]:
    """Turn errors about files that do not fit each other into a `DataError` about the folder."""
    check_libraries()
    from jinja2 import UndefinedError  # noqa: PLC0415

    try:
        yield
    except DPFactError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, UndefinedError) as error:
        raise DataError(
            f"{folder}: its files are damaged, or do not belong together ({type(error).__name__})"
        ) from error


def write_page(out: Path, template: str, content: Mapping[str, Any]) -> Path:
    """Fill in a template file, and write a page that only its owner can read."""
    import jinja2  # noqa: PLC0415
    from markupsafe import Markup  # noqa: PLC0415

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _FILTERS
    script, style = ((_FOLDER / f"page.{kind}").read_text("utf-8") for kind in ("js", "css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assets = {"script": Markup(script), "style": Markup(style), "script_hash": digest}
    page = environment.get_template(template).render(content, **assets)
    with replacing(out) as file:
        file.write(page.encode())
    return out


def figure(name: str, label: str, height: float, *panels: Callable[[Axes], None]) -> Any:
    """Return a figure of panels side by side, as an SVG element in the page's colours.

    `name` makes its ids unique. `label` describes the figure for people who cannot see it.
    """
    import matplotlib  # noqa: PLC0415
    from markupsafe import Markup, escape  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    from dpfact_flower.evaluation import plots  # noqa: PLC0415

    style: Any = plots.STYLE  # matplotlib's own type lists the names of all settings
    file = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the bytes
        matplotlib.rcParams.update(style)
        drawn = Figure(figsize=(_WIDTH, height), layout="constrained")
        places = drawn.subplots(1, len(panels), squeeze=False)[0]
        for axes, draw in zip(places, panels, strict=True):
            draw(axes)
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawn.savefig(file, format="svg", metadata=metadata, transparent=True)
    text = file.getvalue()
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text[text.index("<svg") :])  # HTML needs none
    text = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", text)
    for colour, variable in plots.THEME.items():
        text = text.replace(colour, f"var({variable})")
    return Markup(text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1))


_FILTERS: dict[str, Callable[..., Any]] = {
    "rounded_up": rounded_up,
    "bytes": formatting.size,
    "duration": formatting.duration,
    "p_value": formatting.p_value,
    "number": formatting.number,
    "percent": formatting.percent,
    "odds": formatting.odds,
    "outcome": formatting.outcome,
    "ranges": formatting.ranges,
    # a place on a scale of width 160, from odds of 1/reach to reach
    "odds_place": lambda value, reach: round(80 + 80 * value / math.log(reach)),
    # whether the odds' interval is within 0.1 to 10; few patients give wider intervals
    "odds_tell": lambda a: a.interval is not None and max(map(abs, a.interval)) <= math.log(10),
    "system_class": lambda system: f"s{SYSTEMS.index(system)}",
}
