from dataclasses import fields

import torch

from federec.cohort.draw import Devices
from federec.cohort.update import Update
from federec.federation.device import cohorts, update_of
from federec.federation.state import State

FIELDS = ["n_items", "ids", "counts", "rows", "layers"]


def undeclared(method, update):
    """Names in an update that the method does not declare."""
    return update.values().keys() - set(method.sends())


def test_an_update_has_these_fields_and_no_others():
    assert [field.name for field in fields(Update)] == FIELDS


def test_only_what_a_method_declares_leaves_a_device(device_method, random_split):
    devices = Devices.of(random_split(), False)
    state = State.start(device_method, 40, 12, seed=0)
    sends, private = device_method.sends(), device_method.private()
    assert not {*sends, *device_method.shared()} & set(private)
    tables = {name for name, param in sends.items() if param.rows}
    for cohort in cohorts(device_method, state, devices, torch.arange(12), 0, 1):
        device_method.fit(cohort)
        update = update_of(device_method, cohort, state)
        assert list(vars(update)) == FIELDS
        assert not undeclared(device_method, update)
        assert not {*update.rows, *update.layers} & {*state.private, *state.stores}
        assert set(update.rows) == tables and set(update.layers) == set(sends) - tables
        assert len(update) == len(cohort) == len(update.counts)
        assert update.counts.sum() == len(update.ids)
        if not tables:
            assert len(update.ids) == 0  # which items a device touched is private too
        for name, rows in update.rows.items():
            assert rows.shape == (len(update.ids), *sends[name].sized(40))
        for name, layer in update.layers.items():
            assert layer.shape == (len(cohort), *sends[name].sized(40))


def test_a_private_name_in_an_update_is_noticed(small):
    empty = torch.zeros(0, dtype=torch.int64)
    assert undeclared(small("fedmf"), Update(9, empty, empty, {}, {"user": torch.zeros(0, 4)})) == {"user"}
