"""Which column is which: by common names, or by what the user says (`--columns user=uid,item=mid`)."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from federec.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Kind:
    """What a table is about: the roles that its columns can have."""

    needed: tuple[str, str]
    """The roles without which the table is useless."""
    order: tuple[str, ...]
    """Roles of the columns where there is no header."""
    names: dict[str, list[str]]
    """Common names of each role's column."""
    line: str
    """What a line of a file is, with an example."""
    option: str = ""
    """Where the user says which column is which: `--columns`, or `columns` in Python. Empty if that cannot be said."""

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.names)

    def naming(self, columns: Mapping[str, str]) -> str:
        """How the user says that these are the columns."""
        if self.option == "columns":
            return f"columns={dict(columns)}"
        return f"{self.option} {shlex.quote(','.join(f'{role}={name}' for role, name in columns.items()))}"


# Without blanks and punctuation, in lower case; the first that occurs wins.
_NAMES = {
    "user": """user userid uid u userhash usernum member memberid customer customerid cust custid consumer consumerid
        reviewer reviewerid visitor visitorid account accountid client clientid personid player playerid buyer buyerid
        subscriberid listener listenerid username profilename reviewprofilename session sessionid""",
    "item": """item itemid iid i movie movieid film filmid artist artistid product productid parentasin asin track
        trackid trackuri song songid album albumid recordingmsid book bookid isbn business businessid venue venueid
        locationid poi poiid article articleid news newsid postid tweetid video videoid showid anime animeid game
        gameid app appid recipe recipeid beer beerid beerbeerid restaurant restaurantid hotel hotelid job jobid course
        courseid offer offerid listingid bookmarkid joke jokeid sku stockcode contentid itemcode itemnum""",
    "rating": """rating ratings score scores star stars overall rate grade bookrating movierating userrating
        reviewrating reviewscore reviewoverall ratingvalue ratingscore weight plays playcount playcounts listens
        listencount numplays hours hoursplayed playtime playtimeforever watchratio count counts preference""",
    "timestamp": """timestamp timestamps timestampms timestampsec timestampunix unixtimestamp unixtime unixtimems
        unixreviewtime unix epoch epochms epochseconds epochtime ts utctime datetime time when eventtime
        eventtimestamp eventdatetime eventts reviewtime reviewtimestamp ratingtime ratingtimestamp ratedat playedat
        listenedat watchedat viewedat clickedat clicktime visitedat checkintime purchasedat purchasetime boughtat
        orderedat ordertime ordertimestamp transactiontime addedat createdat createdtime createtime createdutc
        submittedat interactiontime actiontime logtime occurredat recordedat readat updatedat date eventdate
        reviewdate ratingdate purchasedate orderdate transactiondate transactiondt tdat invoicedate saledate
        dateadded addeddate datecreated createdate createddate creationdate dateupdated interactiondate""",
    "split": "split",
    "title": """title titles itemtitle movietitle filmtitle booktitle tracktitle songtitle producttitle newstitle
        articletitle gametitle videotitle originaltitle name names itemname moviename filmname artistname trackname
        songname productname businessname bookname gamename appname animename recipename beername venuename
        headline""",
}
_KNOWN = {role: names.split() for role, names in _NAMES.items()}

INTERACTIONS = Kind(
    needed=("user", "item"),
    order=("user", "item", "rating", "timestamp"),
    names={role: _KNOWN[role] for role in ("user", "item", "rating", "timestamp", "split")},
    line="one interaction per line, e.g. user,item,time",
    option="--columns",
)

TITLES = Kind(
    needed=("item", "title"),
    order=("item", "title"),
    names={  # ids first: among titles, `movie` may be one
        "item": [*sorted(_KNOWN["item"], key=lambda name: not name.endswith("id")), "id"],
        "title": _KNOWN["title"],
    },
    line="one item per line, e.g. item,title",
)


def parse_columns(text: str) -> dict[str, str]:
    """`user=uid,item=mid` -> {"user": "uid", "item": "mid"}."""
    columns: dict[str, str] = {}
    for part in text.split(","):
        role, equals, column = (word.strip() for word in part.partition("="))
        if not (role and equals and column):
            raise UserError(f"--columns: '{part.strip()}' is not ROLE=COLUMN; write e.g. user=uid,item=mid")
        if role not in INTERACTIONS.roles:
            raise UserError(f"--columns: unknown role '{role}'{did_you_mean(role, INTERACTIONS.roles)}")
        if role in columns:
            raise UserError(f"--columns: '{role}' is given twice; name one column for it")
        columns[role] = column
    return columns


def recognise(names: Sequence[str], kind: Kind = INTERACTIONS) -> dict[str, int]:
    """The positions of the roles whose common names occur in a header."""
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        positions.setdefault("".join(c for c in name.split(":")[0].lower() if c.isalnum()), position)
    found = {role: [positions[name] for name in known if name in positions] for role, known in kind.names.items()}
    return {role: places[0] for role, places in found.items() if places}


def is_position(column: str) -> bool:
    return column.isascii() and column.isdigit()


def choose(
    names: Sequence[str], has_header: bool, columns: Mapping[str, str], where: str, kind: Kind = INTERACTIONS
) -> dict[str, int]:
    """The position of every role that the table has; `names` is the header, or the first row of a file without one.

    The columns that the user named come first; a header then gives the others by their common names. With neither
    the order is that of `kind.order`.
    """
    if not names:
        raise UserError(f"{where}: has no columns; it needs {' and '.join(kind.needed)}")
    if unknown := [role for role in columns if role not in kind.roles]:
        raise UserError(f"columns: unknown role '{unknown[0]}'{did_you_mean(unknown[0], kind.roles)}")
    chosen = {role: _find(names, has_header, column, role, where) for role, column in columns.items()}
    if has_header:
        for role, position in recognise(names, kind).items():
            if role not in chosen and position not in chosen.values():
                chosen[role] = position
    elif not columns:
        chosen = dict(zip(kind.order, range(len(names)), strict=False))
    if len(set(chosen.values())) < len(chosen):
        raise UserError(f"{where}: {kind.option} names the same column twice; give each role a column of its own")
    if missing := [role for role in kind.needed if role not in chosen]:
        if has_header:
            raise UserError(unnamed(names, missing, where, kind))
        raise UserError(
            f"{where}: {kind.option or 'it'} gives no {missing[0]}, and there is no header; add its position"
        )
    if has_header:
        _refuse_twins(names, {role: at for role, at in chosen.items() if columns.get(role) != str(at)}, where, kind)
    return chosen


def unnamed(names: Sequence[str], missing: Sequence[str], where: str, kind: Kind = INTERACTIONS) -> str:
    """The message for a header in which a column that is needed is not recognised."""
    which = " and the ".join(missing)
    if not kind.option:
        return f"{where}: cannot tell the {which} column among {listing(names)}; call it {' and '.join(missing)}"
    free = [name for position, name in enumerate(names) if position not in recognise(names, kind).values()]
    if len(free) < len(missing):
        return f"{where}: no column is left for the {which} among {listing(names)}; add it"
    remedy = kind.naming({role: shown(name)[1:-1] for role, name in zip(missing, free, strict=False)})
    return f"{where}: cannot tell the {which} column among {listing(names)}; name it, e.g. {remedy}"


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


def _refuse_twins(names: Sequence[str], chosen: Mapping[str, int], where: str, kind: Kind) -> None:
    """Refuse a column that was chosen by a name which another column has too."""
    counts = Counter(name.strip() for name in names)
    for role, position in chosen.items():
        if counts[names[position].strip()] > 1:
            remedy = f", or give its position: {kind.naming({role: str(position)})}" if kind.option else ""
            raise UserError(f"{where}: two columns are called {shown(names[position])}; rename one{remedy}")
