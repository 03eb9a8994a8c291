"""Write self-contained HTML pages, and format the numbers on these pages.

A page's Content-Security-Policy allows only the page's own script, identified by its hash. Equal
content gives equal bytes. Matplotlib and Jinja2 load slowly, so they are imported only when needed.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfact_flower.data.code_names import BODY_SYSTEMS
from dpfact_flower.errors import DataError, DPFactError, MissingDependencyError, plural
from dpfact_flower.machine.files import replacing
from dpfact_flower.privacy import rounded_up

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FOLDER = Path(__file__).parent / "templates"
_WIDTH = 9.6  # of figures, in inches
BLUE, ORANGE, GREEN, INK, LINE = "#0072b2", "#d55e00", "#009e73", "#1b2733", "#c9d1da"
THEME = {BLUE: "--blue", ORANGE: "--orange", GREEN: "--green", INK: "--ink", LINE: "--line"}
"""Maps colours in figures to the CSS variables that replace the colours, for a dark mode."""
STYLE: Any = {  # matplotlib's own type lists every setting's name
    "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": LINE, "grid.linewidth": 0.6,
    "svg.fonttype": "none", "svg.hashsalt": "dpfact-flower",
}  # fmt: skip
"""Matplotlib settings for reports. Notebooks keep their own settings."""


def library(name: str) -> Any:
    """Import an optional library, or raise an error that says how to install the library."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f'{error.name} is not installed; install it with: pip install "dpfact-flower[report]"'
        ) from None


@contextmanager
def belonging(*folders: Path) -> Iterator[None]:
    """Turn errors from damaged files into a `DataError` that names the files' folders."""
    library("matplotlib")
    undefined = library("jinja2").UndefinedError
    try:
        yield
    except DPFactError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, undefined) as error:
        raise DataError(
            f"{', '.join(map(str, folders))}: files are damaged, or do not belong together "
            f"({type(error).__name__})"
        ) from error


def write_page(out: Path, template: str, content: Mapping[str, Any]) -> Path:
    """Fill in a template, and write the page to the file `out`, which only its owner can read."""
    from markupsafe import Markup  # noqa: PLC0415

    jinja2 = library("jinja2")
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
    """Draw panels side by side in the page's colours, and return them as one SVG element.

    `name` is a prefix of all ids in the element. `label` describes the figure for screen readers.
    """
    import matplotlib  # noqa: PLC0415
    from markupsafe import Markup, escape  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    file = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the bytes
        matplotlib.rcParams.update(STYLE)
        drawn = Figure(figsize=(_WIDTH, height), layout="constrained")
        places = drawn.subplots(1, len(panels), squeeze=False)[0]
        for axes, draw in zip(places, panels, strict=True):
            draw(axes)
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawn.savefig(file, format="svg", metadata=metadata, transparent=True)
    text = file.getvalue()
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text[text.index("<svg") :])  # not needed in HTML
    text = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", text)
    for colour, variable in THEME.items():
        text = text.replace(colour, f"var({variable})")
    return Markup(text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1))


_NUMBERS = (
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    "twenty",
)  # fmt: skip
_OUTCOMES = {"died": "death", "readmitted": "readmission"}


def outcome(label: str) -> str:
    """Return an outcome's readable name, or its label if no readable name is known."""
    return _OUTCOMES.get(label, label)


def counted(count: int) -> str:
    """Format a count for a sentence: as a word up to twenty, and in digits above twenty."""
    return _NUMBERS[count] if count < len(_NUMBERS) else f"{count:,}"


def size(count: float) -> str:
    """Format a number of bytes with a decimal unit, such as ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def p_value(p: float) -> str:
    """Format a p-value as medical journals do, such as ``p < 0.001``."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def odds(coefficient: float) -> str:
    """Format a log odds ratio as an odds ratio, such as ``2.31``, ``12`` or ``<0.01``."""
    if coefficient < math.log(0.005):
        return "<0.01"
    if coefficient > math.log(99.5):
        return ">99"
    ratio = math.exp(coefficient)
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def number(value: float) -> str:
    """Format a number with four significant digits, or as a whole number if it is at least 1000."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float) -> str:
    """Format a share as a percentage with one decimal place and a proper minus sign."""
    return f"{100 * share:.1f} %".replace("-", "−")


def ranges(numbers: Iterable[int]) -> str:
    """Format ascending numbers as ranges, such as ``1–3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number <= runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


_WRITERS = (rounded_up, size, duration, p_value, number, percent, odds, outcome, plural, ranges)
_FILTERS: dict[str, Callable[..., Any]] = {
    **{write.__name__: write for write in _WRITERS},
    # a position on a scale of width 160 that runs from odds ratio 0.1 to 10
    "odds_place": lambda value: min(max(round(80 + 80 * value / math.log(10)), 0), 160),
    # whether the upper end of the odds ratio's interval is at most ten times the lower end
    "odds_tell": lambda a: bool(a.interval) and a.interval[1] - a.interval[0] <= math.log(10),
    "system_class": lambda system: f"s{BODY_SYSTEMS.index(system)}",
}
