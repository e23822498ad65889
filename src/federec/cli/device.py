"""`federec device`: a user's own device - its folder, what it records, recommends and forgets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from federec.cli import options
from federec.cli.output import JSON, show
from federec.errors import UserError

if TYPE_CHECKING:
    from federec.data.interactions import Interactions
    from federec.network.device_folder import DeviceFolder
    from federec.network.keys import Key
    from federec.network.ledger import Spent

    Make = Callable[[Path, Key], DeviceFolder]

app = typer.Typer(
    help="A user's own device: record, recommend, decide, forget.",
    no_args_is_help=True,
)

FOLDER = Option(
    Path("device"),
    "--folder",
    envvar="FEDEREC_DEVICE",
    readable=False,
    show_default=False,
    show_envvar=False,
    help="The device folder. [default: $FEDEREC_DEVICE, or device]",
)
KEY = Option(None, "--key", readable=False, help="Its key file. [default: where `init` put it]")
USER = Option(None, "--user", help="Whose; needed where the folder hosts several users.")


@app.command()
def init(
    catalogue: Path | None = Option(None, readable=False, help="The server's list of items, a JSON file."),
    user: list[str] | None = Option(None, "--user", help="A user of the device; may be repeated. [default: me]"),
    data: str | None = Option(
        None,
        autocompletion=options.SET_NAMES,
        help="For trying out: host users of a named set or file instead.",
    ),
    users: str | None = Option(
        None, help="Which of the set's users, by their ids: 42 or 3,8,20-29 or anna,bert. [default: all]"
    ),
    columns: str | None = options.COLUMNS,
    min_interactions: int | None = options.MIN_INTERACTIONS,
    k_core: int | None = options.K_CORE,
    min_rating: float | None = options.MIN_RATING,
    repeats: str | None = options.REPEATS,
    titles: Path | None = options.TITLES,
    folder: Path = FOLDER,
    key: Path | None = Option(None, "--key", readable=False, help="Key file to use; made if it is not there."),
    passphrase: bool = Option(False, "--passphrase", help="Lock with a passphrase instead of a key file."),
    keyring: bool = Option(False, "--keyring", help="Lock with a key in the system's key ring instead."),
) -> None:
    """Make a device folder.

    Everything in it is encrypted. The key is put into a file outside the folder that only you may read, unless you
    choose otherwise. Without the key nobody can read the folder, you included: keep a copy of it.
    """
    from federec.network.device_folder import check_free

    if (catalogue is None) == (data is None):
        raise UserError("say what items there are: either --catalogue FILE or, for trying out, --data NAME")
    if (user and data) or (users and not data):
        raise UserError("--user goes with --catalogue, --users with --data")
    reading = options.data_values(data, columns, min_interactions, k_core, min_rating, repeats, titles, None, None)
    if reading and not data:
        raise UserError("how data is read goes with --data")
    if sum((key is not None, passphrase, keyring)) > 1:
        raise UserError("choose one of --key, --passphrase and --keyring")
    check_free(folder)
    make = _from_catalogue(catalogue, user or ["me"]) if catalogue is not None else _from_data(reading, users)
    own, new = _make_key(key, passphrase, keyring)
    try:
        device = make(folder, own)
    except BaseException:
        if new:
            own.destroy()
        raise
    hosts = f"user '{device.users[0]}'" if len(device.users) == 1 else f"{len(device.users):,} users"
    typer.echo(f"{folder}: hosts {hosts}, {len(device.catalogue):,} items; {_locked(folder)}")


@app.command()
def add(
    item: str = Argument(..., help="The item, as the catalogue calls it."),
    rating: float | None = Option(None, help="How much it was liked, on the federation's scale."),
    user: str | None = USER,
    folder: Path = FOLDER,
    key: Path | None = KEY,
) -> None:
    """Record that a user touched an item just now. It stays on this device."""
    with _opened(folder, key) as device:
        number = device.user(user)
        device.add(number, item, rating=rating)
        typer.echo(f"recorded {_named(device, item)}; interactions: {len(device.history(number)):,}")


@app.command()
def status(folder: Path = FOLDER, key: Path | None = KEY, as_json: bool = JSON) -> None:
    """Show what the folder holds, in numbers."""
    from datetime import datetime

    from federec.reporting.tables import summary_table

    with _opened(folder, key) as device:
        head = device.head
        names = device.users if len(device.users) <= 5 else f"{len(device.users):,}"
        summary = {
            "folder": f"{folder.resolve()}, {sum(file.stat().st_size for file in folder.iterdir()) / 1024:,.0f} kB",
            "lock": _locked(folder),
            "users": ", ".join(names) if isinstance(names, list) else names,
            "interactions": sum(len(device.history(user)) for user in range(len(device.users))),
            "catalogue": f"{len(device.catalogue):,} items, version {device.catalogue.version}",
            "learned": "nothing yet: it has not taken part in a federation",
        }
        if head is not None:
            when = datetime.fromtimestamp(head.time).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
            method = "+".join([head.config["method"], *head.config["plugins"]])
            summary |= {"learned": f"{method}, round {head.round} of run '{head.run}', {when}"}
        summary["took part"] = _took_part(device.ledger.spent)
    show(summary, as_json, summary_table)


@app.command()
def recommend(
    k: int = Option(10, "-k", help="How many items."),
    user: str | None = USER,
    folder: Path = FOLDER,
    key: Path | None = KEY,
    as_json: bool = JSON,
) -> None:
    """Recommend to a user of this device, offline.

    Ranked are the items whose shared rows have reached the device in some round.
    """
    from federec.network import recommend as offline
    from federec.reporting.tables import items_rows, items_table

    with _opened(folder, key) as device:
        items = offline.recommend(device, device.user(user), k)
        if not items:
            raise UserError("there is nothing left to recommend: every item is known, or the model diverged")
        show(items_rows(items), as_json, items_table)


@app.command()
def request(
    new_key: bool = Option(False, "--new-key", help="With a new key; the old certificate is dropped."),
    folder: Path = FOLDER,
    key: Path | None = KEY,
) -> None:
    """Print what an operator needs to admit this device.

    It is the device's public key, and a proof that the device has the private one.
    """
    with _opened(folder, key) as device:
        if new_key:
            device.renew()
        typer.echo(device.identity.request().decode(), nl=False)


@app.command()
def admit(
    certificate: Path = Argument(..., readable=False, help="The certificate that the operator sent back."),
    root: Path = Option(..., readable=False, help="The federation's root certificate, ca.crt."),
    folder: Path = FOLDER,
    key: Path | None = KEY,
) -> None:
    """Keep the certificate that admits this device."""
    from federec.files import read_bytes

    with _opened(folder, key) as device:
        device.admit(read_bytes(certificate), read_bytes(root))
        typer.echo(f"{folder}: admitted; take part with: federec federation join")


@app.command()
def policy(
    method: str | None = Option(
        None, autocompletion=options.METHOD_NAMES, help="The method that it runs: a name, or path/to/mine.py:Mine."
    ),
    with_: list[str] | None = Option(
        None, "--with", autocompletion=options.PLUGIN_NAMES, help="A plug-in on the method; may be repeated."
    ),
    stage: list[str] | None = Option(
        None,
        autocompletion=options.STAGE_NAMES,
        metavar="NAME[:KEY=VALUE,...]",
        help="What must happen to an update before it leaves, at least, such as clip:norm=1; may be repeated.",
    ),
    cohort: int | None = Option(None, min=2, help="Fewest certified devices in a secure sum, this one among them."),
    rounds: int | None = Option(None, min=1, help="Rounds in which it takes part at most, over all runs."),
    runs: int | None = Option(None, min=1, help="Runs in which it takes part at most."),
    epsilon: float | None = Option(
        None, help="Let updates leave under noise instead of in secure sums, until this epsilon is used up."
    ),
    show_server_what_i_like: bool = Option(
        False,
        "--show-server-what-i-like",
        help="Let the server read this device's own updates. From them it can work out which items the user has.",
    ),
    reset: bool = Option(False, "--reset", help="Back to the default: only secure sums."),
    folder: Path = FOLDER,
    key: Path | None = KEY,
) -> None:
    """Show what may leave this device, or change it. Orders that ask for more are refused, whoever gives them."""
    from federec.network.policy import Policy
    from federec.stages.registry import parse

    given = {"method": method, "cohort": cohort, "rounds": rounds, "runs": runs, "budget": epsilon}
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if method is not None or with_:
        changes["plugins"] = tuple(with_ or ())
    if stage:
        changes["channel"] = tuple(parse(stage))
    if show_server_what_i_like:
        changes["clear"] = True
    with _opened(folder, key) as device:
        if reset or changes:
            old = {} if reset else device.policy.model_dump()
            device.pin(Policy.checked(**old | changes))
        for sentence in device.policy.words(device.active):
            typer.echo(sentence)


@app.command()
def forget(
    item: str | None = Argument(None, help="The item, as the catalogue calls it."),
    everything: bool = Option(False, "--everything", help="Erase all instead of one item."),
    user: str | None = USER,
    yes: bool = Option(False, "--yes", help="Do not ask."),
    folder: Path = FOLDER,
    key: Path | None = KEY,
) -> None:
    """Erase one interaction, or everything.

    ITEM: the interaction is erased, and with it all private parameters of the user, since they were learned from it
    too. The next rounds learn them anew from what is left.

    --everything: the folder is erased, and its key if `init` made one; no key is needed for that. With --user, all
    interactions and private parameters of that one user.

    What stays: shared parameters. Rounds that the device took part in have gone into the server's model as sums and
    cannot be taken out of it again.
    """
    if (item is None) != everything:
        raise UserError("say what to forget: either an ITEM or --everything")
    if everything and user is None:
        _erase(folder, yes)
        return
    with _opened(folder, key) as device:
        number = device.user(user)
        if everything and not yes:
            typer.confirm(f"Erase all {len(device.history(number)):,} interactions of '{user}'?", abort=True)
        device.forget(number, item)
        what = "everything" if item is None else _named(device, item)
        typer.echo(f"forgot {what} and the private parameters; interactions left: {len(device.history(number)):,}")


def _took_part(spent: Spent) -> str:
    """What has left the device, and what noise has used up of its budget."""
    from federec.network.policy import DELTA, epsilon

    runs = "1 run" if len(spent.runs) == 1 else f"{len(spent.runs)} runs"
    used = f"; noise has used up epsilon {epsilon(spent.rho):.3g} (delta {DELTA:g})" if spent.rho else ""
    return f"in {spent.rounds:,} rounds of {runs}{used}"


def _erase(folder: Path, yes: bool) -> None:
    from federec.network.device_folder import check_folder, erase, lock
    from federec.network.keys import Key, key_folder

    check_folder(folder)
    if not yes:
        typer.confirm(f"Erase {folder} and everything in it?", abort=True)
    try:
        found = lock(folder)
    except UserError:  # damaged: what can be erased is erased
        found = None
    erase(folder)
    typer.echo(f"{folder}: erased")
    if found is not None and (found.kind == "keyring" or Path(found.place).parent == key_folder().resolve()):
        Key(found.kind, b"", found.place).destroy()
        typer.echo("its key: erased")


@contextmanager
def _opened(folder: Path, key: Path | None) -> Iterator[DeviceFolder]:
    from federec.network.device_folder import DeviceFolder

    device = DeviceFolder.open(folder, find_key(folder, key))
    try:
        yield device
    finally:
        device.close()


def find_key(folder: Path, given: Path | None) -> Key:
    """The key of a folder: where it was put, or asked for."""
    from federec.network.device_folder import lock
    from federec.network.keys import Key

    found = lock(folder)
    if given is not None or found.kind == "file":
        path = given or Path(found.place)
        if given is None and not path.is_file():
            raise UserError(f"{folder}: its key is not where it was ({path}); name the file with --key")
        return Key.file(path)
    return Key.ring(found.place) if found.kind == "keyring" else Key.passphrase(_ask())


def _from_catalogue(path: Path, users: list[str]) -> Make:
    from federec.network.catalogue import Catalogue
    from federec.network.device_folder import DeviceFolder

    return partial(DeviceFolder.create, catalogue=Catalogue.read(path), users=users)


def _from_data(reading: dict[str, Any], users: str | None) -> Make:
    from federec.data.describe import remarks
    from federec.network.device_folder import DeviceFolder
    from federec.runs.config import RunConfig

    data = RunConfig.checked(**reading).load()
    for remark in remarks(data):
        typer.echo(remark, err=True)
    codes = range(data.n_users) if users is None else [data.user_code(label) for label in _labels(users, data)]
    return partial(DeviceFolder.share, data=data, codes=codes)


def _make_key(file: Path | None, passphrase: bool, keyring: bool) -> tuple[Key, bool]:
    """A key, and whether it is new."""
    import secrets

    from federec.network.keys import Key, key_folder

    if file is not None and file.exists():
        return Key.file(file), False
    if passphrase:
        return Key.passphrase(_ask(new=True)), False
    return Key.new_ring() if keyring else Key.new_file(file or key_folder() / f"{secrets.token_hex(8)}.key"), True


def _ask(new: bool = False) -> str:
    if (text := os.environ.get("FEDEREC_PASSPHRASE")) is not None:
        return text
    asked: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=new, err=True)
    return asked


def _locked(folder: Path) -> str:
    from federec.network.device_folder import lock

    found = lock(folder)
    places = {"file": f"key file {found.place}", "keyring": "key in the key ring", "passphrase": "passphrase"}
    return f"locked with a {places[found.kind]}"


def _named(device: DeviceFolder, item: str) -> str:
    title = device.catalogue.titles.get(item)
    return f"'{item}' ({title})" if title else f"'{item}'"


def _labels(text: str, data: Interactions) -> list[str]:
    """The users that a text names: 3,8,20-29 or anna,bert. A range has the ids of the data that lie in it; an id that
    looks like a range is an id."""
    known = {str(label): label for label in data.user_ids}
    labels = []
    for part in (part.strip() for part in text.split(",")):
        ends = part.split("-")
        if part in known or len(ends) != 2 or not all(end.isdecimal() for end in ends):
            labels.append(part)
            continue
        first, last = map(int, ends)
        found = [label for label in known if label.isdecimal() and first <= int(label) <= last]
        if not found:
            few = ", ".join(list(known)[:5])
            raise UserError(f"--users {part}: no user of this data set has such an id; its users are like {few}")
        labels += found
    return labels
