"""A finished run: what came out, and a recommender to ask."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from federec.data.interactions import Interactions
from federec.data.sets import Loadable
from federec.data.split import Split
from federec.errors import UserError
from federec.evaluation.metrics import RANKINGS
from federec.files import as_path, write_atomic
from federec.methods.base import Method
from federec.reporting.details import examples_of
from federec.reporting.frames import Frame, flat, frame
from federec.reporting.labels import HEADLINES
from federec.reporting.report import html_report, html_summary
from federec.runs.config import RunConfig
from federec.runs.folder import Checkpoint, Line, RunFolder
from federec.runs.ranks import contributions, positions, with_training_items
from federec.runs.recommendation import Recommendation, best
from federec.runtimes.recommender import Exclude, Label, Recommender, Users
from federec.runtimes.simulation import CentralTrainer, DeviceTrainer, make_trainer


@dataclass(repr=False)
class Run:
    """A trained method with its figures.

    >>> run = fr.train(fr.FedMF(dim=8), data, rounds=2)
    >>> sorted(run.test)[:2]
    ['full', 'full_light']
    """

    config: RunConfig
    method: Method
    """What was trained."""
    result: dict[str, Any] = field(repr=False)
    """What `result.json` holds."""
    history: list[Line] = field(repr=False)
    """One record a round."""
    point: Checkpoint = field(repr=False)
    data: Interactions = field(repr=False)
    ranks: dict[str, Tensor] = field(repr=False)
    """Ranks of the held-out items in the best round, by `valid|test sampled|full`; see `runs.loop.Review`."""

    def __repr__(self) -> str:
        result, test = self.result, self.test
        name = "+".join([result["method"], *result["plugins"]])
        where = f"{name} on {result['data']['name']}, {self.config.protocol}, seed {self.config.seed}"
        figures = (f"{ranking} {metric} {test[ranking][metric]:.4f}" for ranking, metric in HEADLINES)
        return f"Run({where}, round {result['best_round']} of {result['rounds']}: {', '.join(figures)})"

    def _repr_html_(self) -> str:
        return html_summary(self.result, self.history)

    @property
    def test(self) -> dict[str, dict[str, float]]:
        """Test metrics of the best round: `run.test["sampled"]["hr@10"]`, `run.test["full"]["ndcg@10"]`, ..."""
        test: dict[str, dict[str, float]] = self.result["test"]
        return test

    @property
    def valid(self) -> dict[str, dict[str, float]]:
        """Validation metrics of the best round."""
        valid: dict[str, dict[str, float]] = self.result["valid"]
        return valid

    @cached_property
    def _split(self) -> Split:
        return self.config.split_of(self.data)

    @cached_property
    def trainer(self) -> DeviceTrainer | CentralTrainer:
        """What plays its rounds and ranks for its users."""
        device, engine = device_to_ask(self.config), self.result["engine"]["used"]
        trainer = make_trainer(self.config, self.method, self._split, device, played_by=engine)
        assert isinstance(trainer, DeviceTrainer | CentralTrainer)
        return trainer

    @cached_property
    def _recommender(self) -> Recommender:
        assert self.point.best_state is not None
        return Recommender(self.data, self.trainer, self.point.best_state, self.point.best.round)

    @overload
    def recommend(
        self, user: Label, k: int = ..., *, exclude: Exclude | None = ..., exclude_known: bool = ...
    ) -> list[Recommendation]: ...

    @overload
    def recommend(
        self,
        *,
        users: Users,
        k: int = ...,
        exclude: Exclude | None = ...,
        exclude_known: bool = ...,
    ) -> Frame: ...

    def recommend(
        self,
        user: Label | None = None,
        k: int = 10,
        *,
        users: Users | None = None,
        exclude: Exclude | None = None,
        exclude_known: bool = True,
    ) -> list[Recommendation] | Frame:
        """The k best items that a user has not touched, as the user's own device ranks them, best first.

        One `user` gives a list of `Recommendation(item, score, title)`. `users`, a list of ids or `"all"`, gives a
        frame with the columns user, position, item, score and title. `exclude`: items to leave out for everybody, or a
        mapping from users to items. With `exclude_known=False` a user may get items that are known already.

        >>> len(run.recommend(42, k=2))
        2
        >>> run.recommend(users=[42, 7], k=3, exclude=[11]).shape
        (6, 5)
        """
        if (user is None) == (users is None):
            raise UserError("name one user, or several with users=[...] or users='all'")
        asked = self._recommender.users(users if users is not None else [user])  # type: ignore[list-item]
        items, scores = self._recommender.best(asked, k, exclude, exclude_known)
        row, position = np.nonzero(items >= 0)  # fewer than k items may be left
        found, values = items[row, position], scores[row, position]
        titles = [self.data.titles.get(str(label), "") for label in self.data.item_ids[found]]
        if users is None:
            listed = zip(map(self.data.item_label, found), values.tolist(), titles, strict=True)
            return [Recommendation(*each) for each in listed]
        columns = {"user": self.data.user_ids[asked[row]], "position": position + 1, "item": self.data.item_ids[found]}
        return frame({**columns, "score": values, "title": titles})

    def score(self, users: Users, items: Iterable[Label] | None = None) -> NDArray[np.float32]:
        """The scores [users, items] that the users' devices give to items, to all items if not given; higher is better.
        Scores of different users are not on one scale.

        >>> run.score(users=[42, 7], items=[1, 2, 3]).shape
        (2, 3)
        """
        asked = self._recommender.users(users)
        codes = np.arange(self.data.n_items) if items is None else self._recommender.items(items)
        return self._recommender.scores(asked, codes)

    def best_items(self, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Codes and scores [users, k] of every user's best items, in the order of the data's users; the code is -1
        where fewer are left.

        >>> run.best_items(k=5)[0].shape[1]
        5
        """
        return self._recommender.best(np.arange(self.data.n_users), k)

    def similar_items(self, item: Label, k: int = 10) -> list[Recommendation]:
        """The k items most similar to one, by the cosine of their vectors, which is the score. These are their rows in
        the item table that the devices share; with `fedease` and `ease`, the weights with which an item speaks for the
        others. Methods that have neither refuse.

        >>> len(run.similar_items(11, k=3))
        3
        """
        code = self.data.item_code(item)
        unit = normalize(self._recommender.item_vectors(), dim=1)
        return best((unit @ unit[code]).numpy(), np.array([code]), k, self.data.item_label, self.data.titles)

    def curves(self) -> Frame:
        """A frame with a row for each round: loss, metrics on validation and test, bytes per device, seconds.

        >>> run.curves()["valid.hr@10"].max() <= 1
        True
        """
        rows = [flat({key: value for key, value in line.items() if key != "notes"}) for line in self.history]
        columns = dict.fromkeys(key for row in rows for key in row)
        return frame({key: [row.get(key) for row in rows] for key in columns})

    def per_user(self) -> Frame:
        """A frame with a row for each user of the test: the id, the number of training items, the position of the
        held-out item (1 is the first; the best of several) among the sampled candidates and among all items, and what
        the user contributes to the metrics. The mean of a metric's column is that of `run.test`.

        >>> bool(abs(run.per_user()["full.ndcg@10"].mean() - run.test["full"]["ndcg@10"]) < 1e-6)
        True
        """
        users = self.ranks.get("users")  # runs of older versions have none
        codes = (self.trainer.evaluator.users if users is None else users).cpu().numpy()
        counts = np.diff(self._split.ptr)[codes]
        columns: dict[str, Any] = {"user": self.data.user_ids[codes], "training_items": counts}
        for ranking in RANKINGS:
            columns[f"{ranking}.position"] = positions(self.ranks, ranking).numpy()
            gained = contributions(self.ranks, ranking)
            columns |= {f"{ranking}.{metric}": gained[metric].numpy() for metric in ("hr@10", "ndcg@10", "mrr@10")}
        tested = columns["full.position"] > 0  # others have items held out for validation only
        return frame({key: column[tested] for key, column in columns.items()})

    def save(self, path: str | Path) -> Path:
        """Write the run folder."""
        folder = RunFolder(path)
        folder.create(self.config)
        for line in self.history:
            folder.add_line(line)
        folder.save(self.point)
        folder.write_result(self.result, self.ranks, self._report(), examples_of(self.ranks, self.data))
        return folder.path

    def report(self, path: str | Path) -> Path:
        """Write the report of the run, one HTML file for any browser, and give back its path.

        >>> run.report("report.html").name
        'report.html'
        """
        path = as_path(path)
        write_atomic(path, self._report())
        return path

    def _report(self) -> str:
        ranks = with_training_items(self.ranks, lambda: self._split)
        return html_report(self.result, self.history, ranks, examples_of(ranks, self.data))

    @staticmethod
    def load(path: str | Path, data: Loadable | None = None, method: Method | None = None) -> Run:
        """A finished run from its folder. Its data is loaded again, unless given, and its method is found again, unless
        given: one made in an interactive session must be."""
        folder = RunFolder(path)
        result, config = folder.result(), folder.config(method)
        if folder.federated:
            raise UserError(
                f"{path}: is a federation's, only its devices have a whole model; see: federec device recommend"
            )
        method = config.build(method)
        for file in config.changed(method):
            warnings.warn(f"{file}: has changed since the run {path} was trained; answers may differ", stacklevel=2)
        point = folder.checkpoint(device_to_ask(config))
        if point is None:
            raise UserError(f"{folder.model}: holds no model; train again")
        loaded = data_of(config, point, data)
        return Run(config, method, result, folder.lines(point.round), point, loaded, folder.ranks())


def data_of(config: RunConfig, point: Checkpoint | None, given: Loadable | None = None) -> Interactions:
    """The data of a run, loaded again unless given. It must be what the run was trained on so far."""
    data = config.load(given)
    if point is not None and fingerprint(data) != point.data:
        roles = ", ".join(f"{role}={column}" for role, column in data.columns.items())
        raise UserError(
            f"'{config.data}' has changed since this run was trained on it"
            + (f", or this version reads it otherwise ({roles})" if roles else "")
            + "; bring the old data back, or train again"
        )
    return data


def fingerprint(data: Interactions) -> str:
    """SHA-256 of what training sees: rows, times, given parts and labels."""
    digest = hashlib.sha256()
    for array in (data.users, data.items, data.times, data.parts):
        digest.update(b"" if array is None else np.ascontiguousarray(array).data)
    digest.update("\0".join(map(str, (*data.user_ids, *data.item_ids))).encode(errors="backslashreplace"))
    return digest.hexdigest()


def usable(device: str) -> bool:
    """Whether this machine has the device."""
    _, _, index = device.partition(":")
    return device == "cpu" or (torch.cuda.is_available() and int(index or 0) < torch.cuda.device_count())


def device_to_ask(config: RunConfig) -> str:
    """Where a finished run answers: on the device that trained it, or on the CPU of a machine that has no such one."""
    return config.device if usable(config.device) else "cpu"
