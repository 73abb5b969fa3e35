"""Creates the automations of configs/prefect_automations.yaml on a Prefect server.

    python -m flows.automations configs/mine.toml      # on PREFECT_API_URL

An automation has a body of ours in Prefect's own words; what tells somebody needs the id of a webhook block, which is
made of the URL of the settings' alerts here. Prefect keeps that URL encrypted.
"""

import json
import sys
from pathlib import Path

import yaml
from pydantic import SecretStr

from tasks.settings import alert_settings
from tasks.system.environment import FILES, checkout_path, set_prefect_environment
from tasks.system.errors import PackrankError

PLACEHOLDER = "ALERT_WEBHOOK"
BLOCK = "packrank-alerts"


def create_automations(config: Path, path: Path = FILES / "configs" / "prefect_automations.yaml") -> list[str]:
    """Creates or replaces each automation; returns their names.

    Args:
        config: settings whose alerts' URL is told; those that tell are left out where there is none.
        path: of the automations.

    Raises:
        ConfigError: the settings cannot be read.
    """
    from prefect.blocks.webhook import Webhook
    from prefect.client.orchestration import get_client
    from prefect.events.schemas.automations import AutomationCore

    url = alert_settings(config).find_alert_url()
    asked = yaml.safe_load(path.read_text(encoding="utf-8"))["automations"]
    block_id = None
    if url is not None:
        block_id = Webhook(method="POST", url=SecretStr(url)).save(BLOCK, overwrite=True)
    names = []
    with get_client(sync_client=True) as client:
        for each in asked:
            text = json.dumps(each)
            if PLACEHOLDER in text and block_id is None:
                continue
            automation = AutomationCore.model_validate_json(text.replace(PLACEHOLDER, str(block_id)))
            for old in client.read_automations_by_name(automation.name):
                client.delete_automation(old.id)
            client.create_automation(automation)
            names.append(automation.name)
    return names


def main() -> None:
    """Entry point: the settings file is the one argument."""
    set_prefect_environment()
    try:
        names = create_automations(checkout_path(sys.argv[1]))
    except PackrankError as error:
        raise SystemExit(f"packrank: {error}") from error
    print("\n".join(names))


if __name__ == "__main__":
    main()
