"""How charts are drawn: one style, as SVG inside the page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from tasks.system.environment import set_chart_environment

Axes = Any  # matplotlib's, whose import is left to the drawing
WIDTH, HEIGHT = 480, 270  # user units of the SVG; it is as wide as its place on the page
FONT_SIZE = 13  # readable at 390 px, where a chart shrinks by a quarter
INK, FIRST, SECOND = "#010203", "#0072b2", "#d55e00"  # Okabe and Ito's blue and vermilion, told apart by everyone
PAGE_COLOURS = {INK: "currentColor", FIRST: "var(--series-1)", SECOND: "var(--series-2)"}
STYLE = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.unicode_minus": False,
    "figure.facecolor": "none",
    "font.sans-serif": ["DejaVu Sans"],  # for measuring; the page shows its own
    "font.size": FONT_SIZE,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "text.color": INK,
    "text.parse_math": False,  # an id may hold dollars
    "xtick.color": INK,
    "ytick.color": INK,
}
NUMBER = "{x:,.10g}"  # on an axis
SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"


@dataclass(frozen=True, slots=True)
class Chart:
    """A finished chart."""

    name: str
    title: str
    caption: str  # one sentence for those who do not see it, and for all others
    svg: str


def show_legend(axes: Axes) -> None:
    """In one line above the axes, where no curve is."""
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.98), ncols=3, handlelength=1.4, columnspacing=1.2)


def draw_chart(name: str, title: str, caption: str, paint: Callable[[Axes], None], height: int = HEIGHT) -> Chart:
    """A chart of one panel."""
    return draw_panels(name, title, caption, [paint], height)


def draw_panels(
    name: str, title: str, caption: str, paints: Sequence[Callable[[Axes], None]], height: int = HEIGHT
) -> Chart:
    """A chart of panels below each other with one x-axis; each `paint` draws a panel, and the last one labels x."""
    set_chart_environment()
    import io
    import warnings

    from matplotlib import rc_context
    from matplotlib.figure import Figure

    drawn = io.BytesIO()
    with rc_context(STYLE | {"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser has the letters
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        panels = figure.subplots(len(paints), sharex=True, squeeze=False)[:, 0]
        for paint, axes in zip(paints, panels, strict=True):
            paint(axes)
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return Chart(name, title, caption, _inline(drawn.getvalue(), name, caption))


def _inline(drawn: bytes, name: str, caption: str) -> str:
    """The SVG as part of a page: no namespaces, no style sheet of its own, the page's colours, its own ids."""
    root = ElementTree.fromstring(drawn)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{SVG}metadata", f"{SVG}style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
        values = {key.replace(LINK, "href"): _own(key, value, name) for key, value in element.attrib.items()}
        element.attrib.clear()
        element.attrib.update(values)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib.update({"class": "chart", "role": "img", "aria-label": caption})
    return ElementTree.tostring(root, encoding="unicode")


def _own(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    for colour, page_colour in PAGE_COLOURS.items():
        value = value.replace(colour, page_colour)
    return value.replace("url(#", f"url(#{name}-") if key != LINK else value.replace("#", f"#{name}-", 1)
