"""The report of a finished run, made again from its folder."""

from __future__ import annotations

from typing import Any

from federec.errors import UserError
from federec.reporting.details import Example, Ranks, examples_of
from federec.reporting.report import html_report
from federec.runs.record import RunRecord


def report_of(record: RunRecord) -> str:
    """The report as HTML. It says what is left out because the run does not have it."""
    result = record.result()
    history = record.lines(result["rounds"])
    if record.federated:
        return html_report(result, history)
    try:
        ranks: Ranks = record.rank_arrays()
    except UserError:  # a report without the part about users is better than none
        return html_report(result, history)
    examples = record.examples()
    if examples is None:
        ranks, examples = _with_data(record, result, ranks)
    return html_report(result, history, ranks, examples)


def _with_data(record: RunRecord, result: dict[str, Any], ranks: Ranks) -> tuple[Ranks, list[Example] | None]:
    """The ranks and the examples of a run of an older version, which kept less: its data is needed, as it was."""
    from federec.runs.folder import RunFolder  # torch takes seconds to import, and newer runs do not need it
    from federec.runs.ranks import with_training_items
    from federec.runtimes.run import fingerprint

    try:
        folder = RunFolder(record.path)
        config = folder.config()
        data = config.load()
    except UserError:
        return ranks, None
    if (data.sha256 or fingerprint(data)) != result["data"]["sha256"]:
        return ranks, None
    known = with_training_items(folder.ranks(), lambda: config.split_of(data))
    return known, examples_of(known, data)
