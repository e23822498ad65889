"""Which column is which: by common names, or by what the user says (`--columns user=uid,item=mid`)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from federec.errors import UserError, did_you_mean

ROLES = ("user", "item", "rating", "timestamp")
"""Also the order of the columns in a file without a header."""

# In lower case, without blanks and punctuation; the first that occurs wins.
_NAMES = {
    "user": """user userid uid u username member memberid customer customerid reviewer reviewerid visitor
        visitorid account accountid client clientid""",
    "item": """item itemid iid i movie movieid film filmid artist artistid product productid asin track
        trackid song songid album albumid book bookid isbn business businessid article articleid news newsid
        video videoid game gameid sku""",
    "rating": """rating ratings score scores star stars overall weight plays playcount playcounts listens
        count counts preference""",
    "timestamp": """timestamp timestamps time ts datetime date unixtime unixreviewtime unixtimestamp epoch
        createdat""",
}
_KNOWN = {role: names.split() for role, names in _NAMES.items()}


def parse_columns(text: str) -> dict[str, str]:
    """`user=uid,item=mid` -> {"user": "uid", "item": "mid"}."""
    columns: dict[str, str] = {}
    for part in text.split(","):
        role, equals, column = (word.strip() for word in part.partition("="))
        if not (role and equals and column):
            raise UserError(f"--columns: '{part.strip()}' is not ROLE=COLUMN; write e.g. user=uid,item=mid")
        if role not in ROLES:
            raise UserError(f"--columns: unknown role '{role}'{did_you_mean(role, ROLES)}")
        if role in columns:
            raise UserError(f"--columns: '{role}' is given twice; name one column for it")
        columns[role] = column
    return columns


def recognise(names: Sequence[str]) -> dict[str, int]:
    """The positions of the roles whose common names occur in a header."""
    plain = ["".join(c for c in name.split(":")[0].lower() if c.isalnum()) for name in names]
    found = {role: [plain.index(name) for name in known if name in plain] for role, known in _KNOWN.items()}
    return {role: places[0] for role, places in found.items() if places}


def is_position(column: str) -> bool:
    return column.isascii() and column.isdigit()


def choose(names: Sequence[str], has_header: bool, columns: Mapping[str, str], where: str) -> dict[str, int]:
    """The position of every role that the file has; `names` is the header, or the first row of a file without one.

    The columns that the user named come first; a header then gives the others by their common names. With neither
    the order is user, item, rating, timestamp.
    """
    if unknown := [role for role in columns if role not in ROLES]:
        raise UserError(f"columns: unknown role '{unknown[0]}'{did_you_mean(unknown[0], ROLES)}")
    chosen = {role: _find(names, has_header, column, role, where) for role, column in columns.items()}
    if has_header:
        for role, position in recognise(names).items():
            if role not in chosen and position not in chosen.values():
                chosen[role] = position
    elif not columns:
        chosen = dict(zip(ROLES, range(len(names)), strict=False))
    if len(set(chosen.values())) < len(chosen):
        raise UserError(f"{where}: --columns names the same column twice; give each role a column of its own")
    if missing := [role for role in ("user", "item") if role not in chosen]:
        if has_header:
            raise UserError(unnamed(names, missing, where))
        raise UserError(f"{where}: --columns gives no {missing[0]}, and there is no header; add its position")
    return chosen


def unnamed(names: Sequence[str], missing: Sequence[str], where: str) -> str:
    """The message for a header in which the user or the item column is not recognised."""
    which = " and the ".join(missing)
    free = [name for position, name in enumerate(names) if position not in recognise(names).values()]
    remedy = ",".join(f"{role}={shown(name)[1:-1]}" for role, name in zip(missing, free, strict=False))
    return (
        f"{where}: cannot tell the {which} column among {listing(names)}; name it, e.g. --columns {shlex.quote(remedy)}"
    )


def listing(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:12])) + (", ..." if len(names) > 12 else "")


def shown(cell: object) -> str:
    """A cell as a message quotes it: on one line, and shortened if it is long."""
    text = " ".join(str(cell).split())
    return f"'{text}'" if len(text) <= 40 else f"'{text[:40]}...'"


def _find(names: Sequence[str], has_header: bool, column: str, role: str, where: str) -> int:
    stripped = [name.strip() for name in names]
    bare = [name.split(":")[0] for name in stripped]  # RecBole writes name:type
    for known in (stripped, bare):
        if has_header and column in known:
            return known.index(column)
    if is_position(column) and int(column) < len(names):
        return int(column)
    raise UserError(
        f"{where}: no column '{column}' for the {role}; found {listing(names)} - "
        f"give a name from there or a position from 0 to {len(names) - 1}"
    )
