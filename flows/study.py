"""The study as a Prefect flow: `study`. Point-wise against list-wise; its arms are runs in DuckDB, not task runs."""

from datetime import date
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from flows.progress import ProgressArtifact, TerminalBar
from tasks.environment import checkout_path
from tasks.judge.summary import to_markdown
from tasks.study.arms import Study, StudyRequest, run_study
from tasks.study.claims import read_findings
from tasks.study.page import write_study_page

CLAIMS_KEY, PAGE_KEY = "study-claims", "study-page"


@task(name="arms", cache_policy=NO_CACHE, persist_result=False)
def run_arms(request: StudyRequest) -> Study:
    """Runs every arm that is not complete."""
    artifact = ProgressArtifact(request.config.stem)
    with TerminalBar(request.config.stem) as bar:
        return run_study(request, bar.update, artifact.update)


@task(name="claims", cache_policy=NO_CACHE, persist_result=False)
def tell_claims(study: Study) -> None:
    """Writes arms, serving benchmark and claims as an artifact, and as a page that is linked as another."""
    findings = read_findings(study)
    create_markdown_artifact(to_markdown(findings.tables()), key=CLAIMS_KEY)
    create_link_artifact(write_study_page(findings).as_uri(), key=PAGE_KEY, link_text=f"study {study.name}")


@flow(name="study", persist_result=False)
def study(
    config: str = "configs/study.toml", night: date | None = None, overrides: dict[str, Any] | None = None
) -> str:
    """Runs the arms of a study and returns the base arm's run_id.

    Args:
        config: settings file with a [study] section; a relative path is taken from the checkout.
        night: logical date of the arms' runs; today in the file's time zone if not given.
        overrides: section.key -> value over the settings.
    """
    done = run_arms(StudyRequest(checkout_path(config), night, overrides or {}))
    tell_claims(done)
    return done.runs[0].run_id
