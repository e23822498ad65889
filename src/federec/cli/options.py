"""Options that several commands have: what is trained, which data is read, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Option

from federec.cli.names import METHODS, METRICS, PLUGINS, SETS, STAGES, TRACKERS, one_of

METHOD_NAMES, PLUGIN_NAMES, SET_NAMES, STAGE_NAMES = (one_of(*names) for names in (METHODS, PLUGINS, SETS, STAGES))
WITH = Option(
    None,
    "--with",
    autocompletion=PLUGIN_NAMES,
    help="Put a plug-in on the method: a name or path/to/mine.py:Mine; may be repeated.",
)
SET = Option(None, "--set", metavar="KEY=VALUE", help="A setting of the method; may be repeated.")
SELECT = Option(
    None,
    metavar="METRIC",
    autocompletion=one_of(*METRICS),
    help="The validation metric that picks the round, such as full.ndcg@10 or sampled.hr@10. [default: the "
    "protocol's own]",
)
PATIENCE = Option(None, help="Stop after this many rounds without a better one. [default: play all rounds]")
PARTICIPATION = Option(None, help="Fraction of the devices in a round. [default: the method's own]")
EVALUATE_USERS = Option(None, help="Evaluate this many users, drawn at random. [default: all]")
DEVICE = Option(None, autocompletion=one_of("cpu", "cuda"), help="Hardware: cpu or cuda. [default: cpu]")
STAGE = Option(
    None,
    "--stage",
    autocompletion=STAGE_NAMES,
    metavar="NAME[:KEY=VALUE,...]",
    help="What happens to updates on their way, in order: clip:norm=1, laplace:scale=0.5, gaussian:scale=0.1, "
    "central-noise:multiplier=1, distributed-noise:multiplier=1, dense, top-rows:count=100, quantise:bits=8, "
    "secure-sum; may be repeated.",
)
AGGREGATOR = Option(
    None,
    autocompletion=one_of("mean", "sum", "touched-mean"),
    help="How the server makes one of many updates: mean, sum or touched-mean. [default: the method's own]",
)
EPSILON = Option(
    None,
    min=0,
    help="Differential privacy for each user: clip updates and add noise so that this epsilon is never exceeded; see "
    "`federec privacy plan`.",
)
DELTA = Option(None, help="Probability that belongs to epsilon. [default: 1e-6]")
MAX_EPSILON = Option(
    None, min=0, help="End the run before the round that would exceed this epsilon, with the noise that --stage names."
)
TRACK = Option(
    None,
    "--track",
    autocompletion=one_of(*TRACKERS),
    metavar="NAME[:KEY=VALUE,...]",
    help="Log the run for another program, too: tensorboard, or mlflow:uri=http://localhost:5000,experiment=films; may "
    "be repeated.",
)
PROTOCOL = Option(
    None, autocompletion=one_of("clean", "paper"), help="How negatives are drawn: clean or paper. [default: clean]"
)
ROUNDS = Option(None, help="Rounds of training. [default: the method's own]")
OUT = Option(None, readable=False, help="Folder of the run. [default: a new one under runs/]")
DATA = Option(None, autocompletion=SET_NAMES, help="A named set, a file, or a generated folder. [default: tastes]")
COLUMNS = Option(
    None,
    help="Columns of the file, such as user=uid,item=mid,timestamp=3; the roles: user, item, rating, timestamp, split.",
)
MIN_INTERACTIONS = Option(None, min=0, help="Leave out users with fewer rows than this.")
K_CORE = Option(None, min=0, help="Leave out users with fewer items, and items with fewer users, than this.")
MIN_RATING = Option(None, help="Only rows with at least this rating count. [default: all rows]")
REPEATS = Option(
    None,
    autocompletion=one_of("merge", "keep"),
    help="Rows that repeat a (user, item) pair: merge or keep. [default: merge; keep for lastfm-2k-tags]",
)
TITLES = Option(None, readable=False, help="A file with the titles of the items.")
VALID_FILE = Option(
    None, readable=False, help="A file with the rows to validate on; --data then has those of training."
)
TEST_FILE = Option(None, readable=False, help="A file with the rows to test on; --data then has those of training.")
SPLIT = Option(
    None,
    metavar="RULE",
    autocompletion=one_of("leave-one-out", "time", "ratio", "given"),
    help="What is held out: leave-one-out, time, ratio or given; with fractions: time:0.8,0.1,0.1. "
    "[default: given where the data has a split column, else leave-one-out]",
)
TIES = Option(
    None,
    autocompletion=one_of("random", "file"),
    help="The order of a user's rows with equal times: random or file. [default: random under clean, file under paper]",
)


def data_values(
    data: str | None,
    columns: str | None,
    min_interactions: int | None,
    k_core: int | None,
    min_rating: float | None,
    repeats: str | None,
    titles: Path | None,
    valid_file: Path | None,
    test_file: Path | None,
) -> dict[str, Any]:
    """The values for `RunConfig` and, apart from `data`, for `load`: only what was given."""
    from federec.data.columns import parse_columns

    held_out = {"valid": valid_file, "test": test_file}
    values = {
        "data": data,
        "columns": parse_columns(columns) if columns else None,
        "min_interactions": min_interactions,
        "k_core": k_core,
        "min_rating": min_rating,
        "repeats": repeats,
        "titles": None if titles is None else str(titles),
        "held_out": {part: str(path) for part, path in held_out.items() if path is not None} or None,
    }
    return {key: value for key, value in values.items() if value is not None}
