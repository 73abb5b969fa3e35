"""The command `packrank demo`: the sample that comes with packrank, ranked by its small model in the user's folder."""

from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

SETTINGS, MODEL = "configs/sample.toml", "models/sample"
NOTES = (
    "This model is too small to rank a list. Its list-wise step gains nothing distinguishable from noise:",
    "nDCG@10 is 0.5331 with the point-wise step alone and 0.5470 with both (24 queries, docs/log.md).",
    "For your own data copy {own}, which asks this model point-wise, or names presets for a GPU.",
)


def demo(
    *,
    dry_run: Annotated[bool, Parameter(help="Stage and plan only: no engine, nothing written.", negative=())] = False,
    prefect: Annotated[bool, Parameter(help="Run as a Prefect flow run; --no-prefect runs without Prefect.")] = True,
) -> None:
    """Rank the bundled sample with a small model.

    Both are in var/ and models/ of the checkout, or, with an installed wheel, of the working directory. The
    model is built first if it is not there.
    """
    from flows.night_runner import run_as_flow, run_plainly
    from tasks.nightly.prepare import NightRequest
    from tasks.system.environment import checkout_path
    from tasks.tools.sample_model import build_sample_model

    console = Console()
    if not checkout_path(MODEL).is_dir():
        console.print(f"Building the sample model in {checkout_path(MODEL)} (93 MB to download).", soft_wrap=True)
        build_sample_model(checkout_path(MODEL))
    request = NightRequest(config=checkout_path(SETTINGS), dry_run=dry_run, publish=not dry_run)
    (run_as_flow if prefect else run_plainly)(request, console)
    for note in NOTES:
        console.print(note.format(own=checkout_path("configs/own.toml")), soft_wrap=True, highlight=False)
