"""The study as a Prefect flow: `study`. Point-wise against list-wise; its arms are runs in DuckDB, not task runs."""

import socket
from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from flows.flow_parameters import ConfigParameter, NightParameter, OverridesParameter
from flows.messenger import Messenger, ProgressArtifact, ends_without_prefect
from flows.progress import TerminalBar
from tasks.report.table_formats import to_markdown
from tasks.study.arm_runs import Study, StudyRequest, run_study
from tasks.study.claims.findings import read_findings
from tasks.study.study_page import write_study_page
from tasks.system.environment import checkout_path

CLAIMS_KEY, PAGE_KEY = "study-claims", "study-page"


@task(name="arms", cache_policy=NO_CACHE, persist_result=False)
def run_arms(request: StudyRequest, messenger: Messenger) -> Study:
    """Runs every arm that is not complete."""
    with TerminalBar() as bar:
        return run_study(request, bar.show, ProgressArtifact(messenger, request.config.stem).show)


@task(name="claims", cache_policy=NO_CACHE, persist_result=False)
def tell_claims(study: Study, messenger: Messenger) -> None:
    """Writes arms, serving benchmark and claims as an artifact, and as a page; another artifact says where that is."""
    findings = read_findings(study)
    told = f"study {study.name}: {len(study.runs)} runs"
    messenger.send_text(CLAIMS_KEY, to_markdown(findings.tables()), told)
    page = write_study_page(findings)
    messenger.send_text(PAGE_KEY, f"The study's page: `{page}` on `{socket.gethostname()}`", told)


def _flow_run_name() -> str:
    """Names the settings file and the night."""
    asked = flow_run.parameters
    return f"{Path(asked['config']).stem} {asked['night'] or ''}".rstrip()


@flow(name="study", flow_run_name=_flow_run_name, persist_result=False)
def study(
    config: ConfigParameter = "configs/study.toml", night: NightParameter = None, overrides: OverridesParameter = None
) -> str:
    """Runs the arms of a study and returns the base arm's run_id.

    Args:
        config: settings file with a [study] section; a relative path is taken from the checkout.
        night: logical date of the arms' runs; today in the file's time zone if not given.
        overrides: section.key -> value over the settings.
    """
    with ends_without_prefect(), Messenger() as messenger:
        done = run_arms(StudyRequest(checkout_path(config), night, overrides or {}), messenger)
        tell_claims(done, messenger)
        return done.runs[0].run_id
