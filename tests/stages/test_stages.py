"""What each stage does, stage by stage."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federec.errors import UserError
from federec.stages.base import Format, Promise
from federec.stages.clip import Clip
from federec.stages.dense import Dense
from federec.stages.gaussian import Gaussian
from federec.stages.laplace import Laplace
from federec.stages.quantise import Quantise, decode, encode, limit
from federec.stages.randomness import Real, Simulated
from federec.stages.registry import parse, plain, stage
from federec.stages.secure_sum import STEPS, SecureSum
from federec.stages.top_rows import TopRows


def norms(update):
    square = torch.zeros(len(update))
    for rows in update.rows.values():
        square.index_add_(0, update.owner, rows.square().sum(1))
    for layer in update.layers.values():
        square += layer.flatten(1).square().sum(1)
    return square.sqrt()


def test_clip_scales_long_updates_down_and_leaves_short_ones(update, random):
    between = float(norms(update).sort().values[2])
    sent = Clip(norm=between).device(update, random)
    torch.testing.assert_close(norms(sent), norms(update).clamp(max=between))
    kept = (norms(update) < between)[update.owner]
    assert all(torch.equal(sent.rows[key][kept], rows[kept]) for key, rows in update.rows.items())
    longest = update.owner == norms(update).argmax()
    ratio = sent.rows["a"][longest] / update.rows["a"][longest]
    assert (ratio < 1).all() and torch.allclose(ratio[:, 0], ratio[:, 3])
    assert Clip(norm=2.0).promise(Promise()) == Promise(clip=2.0)


def test_clip_of_nothing_is_nothing(update, random):
    for value in update.values().values():
        value.zero_()
    sent = Clip().device(update, random)
    assert not any(value.isnan().any() or value.any() for value in sent.values().values())


@pytest.mark.parametrize(("kind", "deviation"), [(Laplace, 2**0.5), (Gaussian, 1.0)])
def test_noise_has_its_scale_and_is_new_for_each_value_device_and_round(random_update, kind, deviation):
    update = random_update(devices=400, n_items=60)
    numbers = torch.arange(400)
    random, later = (Simulated.of(3, round_, numbers) for round_ in (1, 2))

    def noise(random):
        sent = kind(scale=0.3).device(update, random).values()
        return torch.cat([((sent[key] - value) / 0.3).flatten() for key, value in update.values().items()])

    first = noise(random)
    assert abs(float(first.mean())) < 0.03 and float(first.std()) == pytest.approx(deviation, rel=0.03)
    assert float((first.abs() > 2 * deviation).float().mean()) == pytest.approx(0.05, abs=0.02)
    assert abs(float(torch.corrcoef(torch.stack([first, noise(later)]))[0, 1])) < 0.02
    assert abs(float(torch.corrcoef(torch.stack([first[:-1], first[1:]]))[0, 1])) < 0.02
    assert len(first.unique()) > (0.7 if kind is Laplace else 0.99) * len(first)
    assert torch.equal(first, noise(random))


def test_dense_sends_the_same_changes_in_whole_tables(update, random):
    sent = Dense().device(update, random)
    assert sent.counts.tolist() == [40] * 5
    whole = sent.rows["b"].view(5, 40, 3)
    assert torch.equal(whole[update.owner, update.ids], update.rows["b"])
    assert torch.count_nonzero(whole) == torch.count_nonzero(update.rows["b"])
    assert Dense().fetches_all
    assert Format("all").update(sent).tolist() == [40 * 7 * 4 + 24] * 5


def test_a_real_devices_noise_is_never_the_same_twice_and_has_its_scale(random_update):
    update = random_update(devices=400, n_items=60)  # many values: the noise is not repeatable
    stage = Gaussian(scale=0.3)
    first, again = (
        torch.cat([((sent[key] - value) / 0.3).flatten() for key, value in update.values().items()])
        for sent in (stage.device(update, Real()).values(), stage.device(update, Real()).values())
    )
    assert float(first.std()) == pytest.approx(1, rel=0.05) and abs(float(first.mean())) < 0.05
    assert abs(float(torch.corrcoef(torch.stack([first, again]))[0, 1])) < 0.05
    assert len(Real().bits(torch.zeros(2, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.int64))) == 2


@given(bits=st.sampled_from([8, 16]), seed=st.integers(0, 1000), size=st.integers(-30, 30))
def test_quantised_values_are_exact_on_the_wire(bits, seed, size):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(6, 5, generator=generator) * 2.0**size
    values[2] = 0
    rounded = Quantise(bits=bits).rounded(values, torch.rand(6, 5, generator=generator))
    codes, exponents = encode(rounded, bits)
    assert codes.dtype == (torch.int8 if bits == 8 else torch.int16) and exponents.dtype == torch.int8
    assert torch.equal(decode(codes, exponents), rounded)
    step = values.abs().amax(1, keepdim=True) * 2 / limit(bits)
    assert ((rounded - values).abs() <= step).all()


def test_quantising_is_right_on_average(random_update):
    update = random_update(devices=1)
    sent = [
        Quantise(bits=8).device(update, Simulated.of(0, round_, torch.arange(1))).rows["a"] for round_ in range(400)
    ]
    error = torch.stack(sent).mean(0) - update.rows["a"]
    assert float(error.abs().max()) < 0.005  # one step is about 0.03


def test_top_rows_keeps_the_largest_of_each_device(update, random):
    sent = TopRows(count=3).device(update, random)
    size = update.rows["a"].square().sum(1) + update.rows["b"].square().sum(1)
    for device in range(5):
        mine = update.owner == device
        best = update.ids[mine][size[mine].argsort(descending=True)[:3]].sort().values
        assert torch.equal(sent.ids[sent.owner == device], best)
    assert all(torch.equal(sent.layers[key], layer) for key, layer in update.layers.items())


def test_a_secure_sum_rounds_to_its_steps_and_cuts_off(update, random):
    update.rows["a"][0, 0] = 1000.0
    sent = SecureSum(most=8.0).device(update, random)
    assert float(sent.rows["a"].max()) == 8.0 and sent.counts.tolist() == [40] * 5
    whole = Dense().device(update, random)
    assert float((sent.rows["b"] - whole.rows["b"]).abs().max()) <= 8.0 / STEPS
    assert SecureSum().promise(Promise()).hidden


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("clipp", "unknown stage 'clipp' - did you mean 'clip'"),
        ("clip:norms=1", "stage 'clip' has no setting 'norms' - did you mean 'norm'"),
        ("dense:all=1", "stage 'dense' has no setting 'all'; it has none"),
        ("clip:norm=-1", "setting norm=-1 of stage 'clip'"),
        ("quantise:bits=9", "setting bits=9 of stage 'quantise'"),
        ("clip:norm", "write it as NAME or NAME:KEY=VALUE"),
    ],
)
def test_a_stage_that_cannot_be_made_is_told_in_one_line(text, said):
    with pytest.raises(UserError) as told:
        stage(parse([text])[0])
    assert said in str(told.value) and "\n" not in str(told.value)


def test_stages_are_plain_values_and_back():
    for text in ("clip:norm=2.5", "laplace:scale=0.1", "dense", "top-rows:count=7", "secure-sum:most=4"):
        made = stage(parse([text])[0])
        assert stage(plain(made)) == made
