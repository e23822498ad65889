"""The report of a finished run, made again from its folder, also where its data is gone."""

from __future__ import annotations

from federec.data.interactions import Interactions
from federec.errors import UserError
from federec.reporting.report import html_report
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.runs.ranks import with_training_items
from federec.runtimes.run import fingerprint


def report_of(folder: RunFolder) -> str:
    """The report as HTML. It says what is left out because the run does not have it."""
    result = folder.result()
    history = folder.lines(result["rounds"])
    if folder.federated:
        return html_report(result, history)
    try:
        ranks = folder.ranks()
    except UserError:  # a report without the part about users is better than none
        return html_report(result, history)
    try:
        config = folder.config()
        data = _data(config, result["data"]["sha256"])
    except UserError:
        return html_report(result, history, ranks)
    if data is not None:
        ranks = with_training_items(ranks, lambda: config.split_of(data))
    return html_report(result, history, ranks, data)


def _data(config: RunConfig, sha256: str) -> Interactions | None:
    """The data of a run; None where it has changed since."""
    data = config.load()
    return data if (data.sha256 or fingerprint(data)) == sha256 else None
