"""Whether `fedsasrec` and `fednext` are better together, and with what a device could add by itself.

    python benchmarks/hybrid.py FEDSASREC_RUN FEDNEXT_RUN [...] [--data ml-100k] [--items items.csv.gz] [--device cuda]
                                [--start ROUNDS] [--page]

Takes pairs of run folders (`benchmarks/order.py --keep`) of one seed each, and scores with them; nothing is trained,
but for `--start`. Every number is chosen on validation items, with the training items as histories. Test items are
ranked with fresh histories. All scores are standardised over the items that a user does not know.

`--items` is a file with the columns item, title and genres, separated by `|`; without it, features are words and years
of titles. `--start` trains `fedsasrec` for so many rounds twice: as it is, and with item rows from `fednext`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from page import put, table
from torch import Tensor

import federec as fr
from federec.cohort.draw import Devices, History
from federec.runtimes.run import device_to_ask
from federec.runtimes.simulation import DeviceTrainer, make_trainer

WEIGHTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5)
SMALL = (0.0, 0.02, 0.05, 0.1, 0.2)
OWN = 10
"""Newest items of its history on which a device tries something for itself."""
USERS = 256
HEAD = ["what ranks", "validation NDCG@10", "test HR@10", "test NDCG@10", "chosen on validation"]


@dataclass
class Case:
    """Users who know something and whose next item is known to us."""

    history: History
    known: Tensor
    """[U, items]"""
    target: Tensor
    """[U]"""
    scores: list[Tensor]
    """[U, items] of each run, standardised."""

    def gains(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Each user's HR@10 and NDCG@10; ties count against the target."""
        own = scores.gather(1, self.target[:, None])
        rank = ((scores >= own) & ~self.known).sum(1) - 1
        hit = (rank < 10).float()
        return hit, hit / (rank + 2.0).log2()


def standardised(scores: Tensor, known: Tensor) -> Tensor:
    count = (~known).sum(1, keepdim=True)
    scores = scores - scores.masked_fill(known, 0).sum(1, keepdim=True) / count
    return scores / (scores.masked_fill(known, 0).square().sum(1, keepdim=True) / count).sqrt().clamp(min=1e-9)


def case(runs: list[fr.Run], devices: Devices, target: Tensor | None, cut: int = 0) -> Case:
    """With the newest `cut` items left out, of which the oldest is the target if none is given."""
    users = torch.arange(len(devices), device=devices.ptr.device)
    whole = devices.history(users)
    history = History(users, whole.items, (whole.counts - cut).clamp(min=1), devices)
    if target is None:
        target = whole.items.gather(1, (whole.counts - cut).clamp(min=1)[:, None])[:, 0]
    known = torch.zeros(len(users), devices.n_items, dtype=torch.bool, device=users.device)
    row, column = history.real.nonzero(as_tuple=True)
    known[row, history.items[row, column]] = True
    known[users, target] = False
    every, scores = torch.arange(devices.n_items, device=users.device), []
    for run in runs:
        state, method = run.point.best_state, run.method
        assert state is not None and isinstance(method, fr.DeviceMethod)
        shared = {name: value.to(users.device) for name, value in state.shared.items()}
        parts = [
            method.recall(shared, history.of(some), every.expand(len(some), -1))["scores"]
            for some in users.split(USERS)
        ]
        scores.append(standardised(torch.cat(parts), known))
    return Case(history, known, target, scores)


def features(data: fr.Interactions, items: Path | None) -> Tensor:
    """[items, features] of genres, years and words of titles, each row of length 1; rare words count more."""
    titles, genres = dict(data.titles), dict[str, str]()
    if items is not None:
        with gzip.open(items, "rt", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                titles[line["item"]], genres[line["item"]] = line["title"], line["genres"]
    described = []
    for label in map(str, data.item_ids):
        title, year = titles.get(label, ""), re.search(r"\((\d{4})\)", titles.get(label, ""))
        words = {f"word {word}" for word in re.findall(r"[a-z0-9]{3,}", title.lower().split("(")[0]) if word != "the"}
        words |= {f"genre {genre}" for genre in genres.get(label, "").split("|") if genre}
        words |= {f"year {(int(year[1]) + shift) // 4}" for shift in (0, 2)} if year else set()
        described.append(words)
    count = Counter(word for words in described for word in words)
    place = {word: at for at, word in enumerate(sorted(word for word, often in count.items() if often > 1))}
    found = torch.zeros(len(described), max(1, len(place)))
    for row, words in enumerate(described):
        for word in words & place.keys():
            found[row, place[word]] = (len(described) / count[word]) ** 0.5
    return found / found.norm(dim=1, keepdim=True).clamp(min=1e-9)


class Trial:
    """Everything for one seed: each method returns (validation NDCG, test HR, test NDCG, what was chosen)."""

    def __init__(self, runs: list[fr.Run], device: str, items: Path | None) -> None:
        split = runs[0].config.split_of(runs[0].data)
        then, now = (Devices.of(each, False, device) for each in (split, split.fresh))
        valid, test = (torch.from_numpy(part.items).long().to(device) for part in (split.valid, split.test))
        assert len(valid) == len(test) == len(then)
        self.valid, self.test = case(runs, then, valid), case(runs, now, test)
        self.own = [[case(runs, devices, None, cut) for cut in range(1, OWN + 1)] for devices in (then, now)]
        """What devices try for themselves: before the validation item, and before the test item."""
        self.about = features(runs[0].data, items).to(device)
        self.bias = runs[0].point.best_state.shared["item_bias"].to(device)  # type: ignore[union-attr]
        self.weight = 0.0
        """That of `fednext`, once chosen."""

    def result(self, of_valid: Tensor, of_test: Tensor, chosen: str) -> tuple[float, float, float, str]:
        hit, gain = self.test.gains(of_test)
        return float(self.valid.gains(of_valid)[1].mean()), float(hit.mean()), float(gain.mean()), chosen

    def alone(self, place: int) -> tuple[float, float, float, str]:
        return self.result(self.valid.scores[place], self.test.scores[place], "")

    def blended(self, each: Case, weight: Tensor | float) -> Tensor:
        return each.scores[0] + weight * each.scores[1]

    def common(self) -> tuple[float, float, float, str]:
        """One weight of `fednext` for everybody."""
        gain = [float(self.valid.gains(self.blended(self.valid, weight))[1].mean()) for weight in WEIGHTS]
        self.weight = WEIGHTS[gain.index(max(gain))]
        return self.result(
            self.blended(self.valid, self.weight), self.blended(self.test, self.weight), f"{self.weight:g}"
        )

    def private_weight(self) -> tuple[float, float, float, str]:
        """Each device picks its weight by its own newest items and, with a strength, by what is good for all."""
        for_all = torch.stack([self.valid.gains(self.blended(self.valid, weight))[1].mean() for weight in WEIGHTS])
        own = [
            torch.stack([sum(each.gains(self.blended(each, weight))[1] for each in cases) for weight in WEIGHTS], 1)  # type: ignore[arg-type]
            for cases in self.own
        ]
        grid, best = torch.tensor(WEIGHTS, device=for_all.device), (-1.0, 0.0, 0.0, "")
        for strength in (3.0, 30.0, 100.0, 300.0, 1000.0):
            weights = [grid[(gain + strength * for_all).argmax(1)][:, None] for gain in own]
            scores = self.blended(self.valid, weights[0]), self.blended(self.test, weights[1])
            best = max(best, self.result(*scores, f"strength {strength:g}"))
        return best

    def added(self, of_valid: Tensor, of_test: Tensor) -> tuple[float, float, float, str]:
        """The common blend and something else, with a weight."""
        best = (-1.0, 0.0, 0.0, "")
        parts = [standardised(s, each.known) for s, each in ((of_valid, self.valid), (of_test, self.test))]
        for weight in SMALL:
            scores = [
                self.blended(each, self.weight) + weight * part
                for each, part in zip((self.valid, self.test), parts, strict=True)
            ]
            best = max(best, self.result(scores[0], scores[1], f"{weight:g}"))
        return best

    def profile(self, half_life: float) -> tuple[float, float, float, str]:
        """Likeness in features to what the device had, the newest most."""
        found = []
        for each in (self.valid, self.test):
            weight = 0.5 ** (each.history.age.clamp(min=0) / half_life) * each.history.real
            whole = torch.zeros_like(each.scores[0]).scatter_add_(1, each.history.items, weight)
            found.append(whole @ self.about @ self.about.T)
        return self.added(*found)

    def residual(self) -> tuple[float, float, float, str]:
        """A private vector of features: those of the device's newest items, less what the blend expected."""
        found = []
        for cases in self.own:
            total = torch.zeros(len(cases[0].target), self.about.shape[1], device=self.about.device)
            for each in cases:
                expected = (2 * self.blended(each, self.weight)).masked_fill(each.known, -torch.inf).softmax(1)
                total += self.about[each.target] - expected @ self.about
            found.append(total @ self.about.T)
        return self.added(*found)

    def popularity(self) -> tuple[float, float, float, str]:
        """A private weight of the items' common biases: whether the newest items had larger ones than expected."""
        found = []
        for cases in self.own:
            total = torch.zeros(len(cases[0].target), device=self.bias.device)
            for each in cases:
                expected = (2 * self.blended(each, self.weight)).masked_fill(each.known, -torch.inf).softmax(1)
                total += self.bias[each.target] - expected @ self.bias
            spread = (self.bias - self.bias.mean()) / self.bias.std()
            found.append((total / total.std())[:, None] * spread)
        best = (-1.0, 0.0, 0.0, "")
        for weight in SMALL:
            scores = [
                self.blended(c, self.weight) + weight * f for c, f in zip((self.valid, self.test), found, strict=True)
            ]
            best = max(best, self.result(scores[0], scores[1], f"{weight:g}"))
        return best

    def rows(self) -> dict[str, tuple[float, float, float, str]]:
        return {
            "`fedsasrec`": self.alone(0),
            "`fednext`": self.alone(1),
            "both, one weight for all": self.common(),
            "both, a private weight for each device": self.private_weight(),
            "both, and likeness in features, half-life 2": self.profile(2.0),
            "both, and likeness in features, half-life 20": self.profile(20.0),
            "both, and a private vector of features": self.residual(),
            "both, and a private weight of popularity": self.popularity(),
        }


def started(runs: list[fr.Run], rounds: int) -> dict[str, tuple[float, float, float, str]]:
    """`fedsasrec` for so many rounds, as it is and with item rows of `fednext`: the largest parts of its weights, made
    symmetric, in the size of random ones."""
    found = {}
    config = runs[0].config.model_copy(update={"rounds": rounds})
    for label in ("as it is", "item rows from `fednext`"):
        method = config.build(type(runs[0].method).model_validate(dict(runs[0].method) | {"schedule": 0}))
        worker = make_trainer(config, method, config.split_of(runs[0].data), device_to_ask(config))
        assert isinstance(worker, DeviceTrainer) and runs[1].point.best_state is not None
        if label != "as it is":
            weights = runs[1].point.best_state.shared["weights"].sum(0)
            values, vectors = torch.linalg.eigh((weights + weights.T) / 2)
            old = worker.state.shared["items"]
            rows = (vectors * values.clamp(min=0).sqrt())[:, -old.shape[1] :]
            worker.state.shared["items"] = (rows * (old.std() / rows.std())).to(old).contiguous()
        best, curve = (-1.0, 0), []
        for number in range(1, rounds + 1):
            played = worker.play(number)
            if "full" in played.valid:
                value = played.valid["full"]["ndcg@10"]
                curve.append(f"{number}: {100 * value:.1f}")
                if value > best[0]:
                    best, kept = (value, number), played.model.copy()
        review = worker.review(kept, best[1])
        fresh = review.fresh["full"]
        shown = " ".join(curve[:: max(1, len(curve) // 6)])
        found[f"`fedsasrec`, {rounds} rounds, {label}"] = (
            review.valid["full"]["ndcg@10"],
            fresh["hr@10"],
            fresh["ndcg@10"],
            shown,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--items", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    data, trials = fr.load(asked.data), []
    for first, second in zip(asked.runs[::2], asked.runs[1::2], strict=True):
        runs = [fr.Run.load(path, data) for path in (first, second)]
        assert runs[0].config.seed == runs[1].config.seed
        with torch.no_grad():
            trials.append(Trial(runs, asked.device, asked.items).rows())
        if asked.start:
            trials[-1] |= started(runs, asked.start)
    rows = []
    for label in trials[0]:
        numbers = [f"{100 * mean(trial[label][place] for trial in trials):.2f}" for place in range(3)]  # type: ignore[misc]
        rows.append([label, *numbers, "; ".join(trial[label][3] for trial in trials)])
    seeds = f"{len(trials)} seeds" if len(trials) > 1 else "one seed"
    told = "with genres" if asked.items else "without genres"
    text = f"{data.name}, `clean`, all items, in percent; test with fresh histories; {seeds}; features {told}.\n\n"
    text += table(HEAD, rows)
    print(text)
    if asked.page:
        where = torch.cuda.get_device_name(asked.device) if asked.device.startswith("cuda") else None
        put(f"hybrid-{asked.data}", f"Both together, {asked.data}", text, where, page="accuracy")


if __name__ == "__main__":
    main()
