import pytest
import torch

from federec.aggregators.touched_mean import TouchedMean
from federec.cohort.draw import Devices
from federec.errors import UserError
from federec.federation.channel import Channel, Link
from federec.federation.device import cohorts, learn, update_of
from federec.federation.engine import fused_round
from federec.federation.round import play
from federec.federation.state import State
from federec.plugins.registry import build
from federec.stages.base import Format, Promise
from federec.stages.clip import Clip
from federec.stages.dense import Dense
from federec.stages.gaussian import Gaussian
from federec.stages.laplace import Laplace
from federec.stages.quantise import Quantise
from federec.stages.secure_sum import SecureSum

EVERYONE = torch.arange(12)


@pytest.fixture
def devices(random_split):
    return Devices.of(random_split(), False)


def played(method, devices, link=None, rounds=2, memory=None):
    state = State.start(method, devices.n_items, len(devices), 1)
    for round_ in range(1, rounds + 1):
        report = play(method, state, devices, EVERYONE, 7, round_, link=link, memory=memory)
    return state, report


def test_updates_go_through_the_stages_in_order(devices, small):
    method, sent = small("fedmf"), []
    channel = Channel((Clip(norm=0.5), Dense(), Gaussian(scale=0.1)))
    state = State.start(method, 40, 12, 1)
    learn(method, state, devices, EVERYONE, 7, 1, channel, lambda update, users: sent.append(update))
    assert all(update.counts.tolist() == [40] * len(update) for update in sent)
    values = torch.cat([update.rows["items"].flatten() for update in sent])
    assert (values != 0).all()  # noise lies on rows that the device never touched
    assert float(values.std()) == pytest.approx((0.01 + 0.25 / 160) ** 0.5, rel=0.1)
    assert channel.format == Format("all") and channel.promise == Promise(0.5, "gaussian", 0.1)


def test_a_channel_does_not_change_what_a_device_learns(devices, small):
    method = small("pfedrec")
    plain, _ = played(method, devices, rounds=1)
    noisy, _ = played(method, devices, Link.of(method, [Clip(), Laplace()]), rounds=1)
    assert all(torch.equal(value, noisy.private[name]) for name, value in plain.private.items())
    assert not torch.equal(plain.shared["items"], noisy.shared["items"])


@pytest.mark.parametrize("memory", [2e3, None])
def test_chunk_sizes_do_not_matter_to_a_channel(devices, small, memory):
    method = small("fedncf")
    link = Link.of(method, [Clip(norm=0.3), Dense(), Laplace(scale=0.01), Quantise(bits=16)])
    state, report = played(method, devices, link, memory=memory)
    other, again = played(method, devices, link, memory=1e9)
    assert (report.up_bytes, report.down_bytes) == (again.up_bytes, again.down_bytes)
    for name, value in state.shared.items():
        torch.testing.assert_close(value, other.shared[name], rtol=1e-5, atol=1e-6)


def test_ldp_is_the_stage_laplace_by_another_name(devices, small):
    plugin, _ = played(small("fedmf", ("ldp",), laplace=0.2), devices)
    method = small("fedmf")
    stage, _ = played(method, devices, Link.of(method, [Laplace(scale=0.2)]))
    assert torch.equal(plugin.shared["items"], stage.shared["items"])


def test_bytes_follow_the_format(devices, small):
    method = small("pfedrec")
    _, plain = played(method, devices, rounds=1)
    _, whole = played(method, devices, Link.of(method, [Dense()]), rounds=1)
    _, small_values = played(method, devices, Link.of(method, [Dense(), Quantise(bits=8)]), rounds=1)
    assert whole.up_bytes == whole.down_bytes == 40 * 4 * 4 >= plain.up_bytes
    assert small_values.up_bytes == 40 * (4 + 1) and small_values.down_bytes == 40 * 4 * 4
    _, hidden = played(method, devices, Link.of(method, [Quantise(bits=8), SecureSum()]), rounds=1)
    assert hidden.up_bytes == 40 * 4 * 4  # masks fill whole words


def test_a_kernel_takes_the_stages_that_it_can(devices, small):
    method = small("pfedrec")
    for stages in ([], [Dense()], [Laplace(scale=0.2)]):
        link = Link.of(method, stages)
        state, report = played(method, devices, link, rounds=1)
        fused = State.start(method, 40, 12, 1)
        playing = fused_round(method, fused, devices, 7, 1, link)
        playing.play(EVERYONE, EVERYONE[:, None])
        quick = playing.finish()
        torch.testing.assert_close(fused.shared["items"], state.shared["items"], rtol=1e-4, atol=1e-4)
        assert (quick.up_bytes, quick.down_bytes) == (report.up_bytes, report.down_bytes)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([Clip()], "'clip' works on single updates"),
        ([Dense(), Laplace()], "cannot apply 'laplace' to the rows that 'dense' adds"),
    ],
)
def test_a_kernel_refuses_the_others_with_the_reason(small, stages, said):
    form = small("pfedrec").fused_form(40)
    assert said in Channel(tuple(stages)).fuse(form)
    assert "'laplace' works on single updates" in Channel((Laplace(),)).fuse(small("fednext").fused_form(40))


def test_what_does_not_go_together_is_refused(small):
    for stages, said in (
        ([Dense(), Dense()], "stage 'dense' is given twice"),
        ([Dense(), Clip()], "stage 'clip' works on single users; put it before 'dense'"),
        ([SecureSum(), Laplace()], "put 'laplace' before 'secure-sum'"),
    ):
        with pytest.raises(UserError, match=said):
            Channel(tuple(stages))
    for name, stages, aggregator, said in (
        ("fedease", [], "mean", "the server of 'fedease' needs the sum"),
        ("pfedrec", [SecureSum()], "touched-mean", "aggregator 'touched-mean' needs single updates"),
        ("metamf", [SecureSum()], None, "the server of 'metamf' needs single updates"),
    ):
        with pytest.raises(UserError, match=said):
            Link.of(small(name), stages, aggregator)
    clipped = Link.of(small("fedmf", ("ldp",)), [Clip(), Dense()]).channel
    assert [stage.name for stage in clipped.stages] == ["clip", "laplace", "dense"]
    with pytest.raises(UserError, match="stage 'laplace' is given twice"):
        Link.of(small("fedmf", ("ldp",)), [Laplace()])


def test_touched_mean_steps_rare_rows_further(devices, small):
    method = small("fedmf")
    link = Link.of(method, [], "touched-mean")
    assert link.aggregator is TouchedMean and "touched-mean" in str(link.why_not_fused())
    start = State.start(method, 40, 12, 1).shared["items"]
    plain, rare = (played(method, devices, each, rounds=1)[0].shared["items"] - start for each in (None, link))
    state, touched = State.start(method, 40, 12, 1), torch.zeros(40)
    for cohort in cohorts(method, state, devices, EVERYONE, 7, 1):
        method.fit(cohort)
        update = update_of(method, cohort, state)
        touched.index_add_(0, update.ids, torch.ones(len(update.ids)))
    torch.testing.assert_close(rare * touched[:, None], plain * 12, rtol=1e-4, atol=1e-5)


def test_the_server_half_sees_the_total_once(devices, small):
    class Doubled(Dense):
        def server(self, total, devices):
            return {name: 2 * value for name, value in total.items()}

    method = build("fedmf", (), {"dim": 4})
    start = State.start(method, 40, 12, 1).shared["items"]
    once, twice = (
        played(method, devices, Link(Channel(stages)), rounds=1)[0].shared["items"] - start
        for stages in ((), (Doubled(),))
    )
    torch.testing.assert_close(2 * once, twice, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("aggregator", ["median", "foolsgold", "item-clip:norm=1"])
def test_what_needs_single_updates_is_refused_under_secure_sums_with_the_remedy(small, aggregator):
    with pytest.raises(UserError, match="'secure-sum' only gives their sum; bound updates on the devices: --stage"):
        Link.of(small("fedmf"), [SecureSum()], aggregator)


def test_the_settings_of_an_aggregator_reach_the_round(devices, small):
    method = small("fedmf")
    plain, _ = played(method, devices, Link.of(method))
    loose, _ = played(method, devices, Link.of(method, aggregator="item-clip:norm=1000"))
    tight, _ = played(method, devices, Link.of(method, aggregator="item-clip:norm=0.001"))
    torch.testing.assert_close(loose.shared["items"], plain.shared["items"])
    assert (tight.shared["items"] - plain.shared["items"]).norm() > 1e-3
