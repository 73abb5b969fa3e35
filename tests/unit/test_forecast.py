"""Time from rates and demand: laws of the arithmetic, and what is read from people and files."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.forecast.demand import Demand
from tasks.forecast.rates import (
    DEVICES,
    Deadline,
    Forecast,
    PrefillRate,
    Rates,
    forecast,
    half_width,
    parse_duration,
    parse_parameters,
    parse_rates,
)
from tasks.settings import NightSettings
from tasks.store.shard_folder import shard_of
from tasks.system.errors import ConfigError

points = st.lists(
    st.builds(PrefillRate, prompt_tokens=st.floats(10, 10_000), tokens_per_s=st.floats(1, 1e6)), min_size=1, max_size=4
)
lengths = st.lists(st.integers(1, 20_000), min_size=1, max_size=30)


def demand(prompt_tokens, output_tokens=None, *, query=None, num_counted=None, num_queries=None, is_scored=False):
    num = len(prompt_tokens)
    counted = num_counted or num
    return Demand(
        query=np.array(range(num) if query is None else query, np.int32),
        prompt_tokens=np.array(prompt_tokens, np.int32),
        output_tokens=np.array([1] * num if output_tokens is None else output_tokens, np.int32),
        is_scored=np.full(num, is_scored),
        num_counted=counted,
        num_queries=num_queries or counted,
    )


def rates(*of_length, **values):
    points = tuple(PrefillRate(prompt_tokens=tokens, tokens_per_s=rate) for tokens, rate in of_length)
    return Rates(prefill=points, **values)


@given(points, lengths, st.integers(0, 500))
def test_more_tokens_never_take_less_time(measured, prompt_tokens, more):
    found = Rates(prefill=tuple(measured))

    shorter = found.seconds(demand(prompt_tokens))
    longer = found.seconds(demand([tokens + more for tokens in prompt_tokens]))

    assert (longer >= shorter - 1e-12).all()
    assert (shorter > 0).all()


@given(points, lengths, st.floats(0, 0.9), st.integers(1, 50))
def test_the_range_holds_what_is_expected(measured, prompt_tokens, spread, factor):
    found = Rates(prefill=tuple(measured), spread=spread)

    told = forecast(found, [demand(prompt_tokens, num_queries=factor * len(prompt_tokens))])

    assert told.low_s <= told.expected_s <= told.high_s
    assert told.expected_s == pytest.approx(factor * found.seconds(demand(prompt_tokens)).sum())


def test_between_two_measured_lengths_seconds_a_prompt_are_interpolated():
    found = rates((1_000, 1_000.0), (100, 1_000.0 / 8))  # 1 s and 0.8 s a prompt, in any order

    seconds = found.seconds(demand([50, 100, 550, 1_000, 3_000]))

    assert seconds == pytest.approx([0.4, 0.8, 0.9, 1.0, 3.0])


def test_rates_by_hand_are_tokens_over_tokens_a_second():
    found = parse_rates("prefill=50000,decode=3000")

    assert found.seconds(demand([100_000, 500], [1, 31])) == pytest.approx([2.0, 0.01 + 30 / 3000])


def test_prompts_whose_tokens_are_scored_have_a_rate_of_their_own():
    found = rates((100, 1_000.0), scored_prefill=(PrefillRate(prompt_tokens=100.0, tokens_per_s=500.0),))

    assert found.seconds(demand([100], is_scored=True)) == pytest.approx([0.2])
    assert found.seconds(demand([100])) == pytest.approx([0.1])
    assert rates((100, 1_000.0)).seconds(demand([100], is_scored=True)) == pytest.approx([0.1])


def test_long_answers_need_a_rate_of_decoding_and_end_before_they_must():
    with pytest.raises(ConfigError, match=r"answers are up to 21 tokens long.*decode="):
        rates((100, 100.0)).seconds(demand([100], [21]))

    found = rates((100, 100.0), decode_tokens_per_s=10.0, answer_share=0.5)
    assert found.seconds(demand([100, 100], [21, 1])) == pytest.approx([1.0 + 9.5 / 10, 1.0])


@pytest.mark.parametrize("text", ["", "decode=3", "prefill=0", "prefill=-1", "prefill=5,prefil=3", "prefill=5 decode=3", "prefill=1.2.3"])  # fmt: skip
def test_rates_that_say_nothing_are_refused(text):
    with pytest.raises(ConfigError, match="expected prefill=50000,decode=3000"):
        parse_rates(text)


def test_durations_and_parameters_are_read_as_people_write_them():
    assert [parse_duration(text) for text in ("4h30m", "90m", "45s", "3600")] == [16_200, 5_400, 45, 3_600]
    assert [parse_parameters(text) for text in ("8B", "0.6B", "135M")] == [8e9, 0.6e9, 135e6]
    for text in ("", "0", "4:30", "h"):
        with pytest.raises(ConfigError, match="expected a duration"):
            parse_duration(text)
    for text in ("8", "B", "0B", "8GB"):
        with pytest.raises(ConfigError, match="expected a number of parameters"):
            parse_parameters(text)


def test_a_sample_widens_the_range_and_all_queries_do_not():
    found = rates((100, 100.0), spread=0.0)
    values = [100, 200, 300, 400]

    whole = forecast(found, [demand(values)])
    drawn = forecast(found, [demand(values, num_queries=400)])

    assert whole == Forecast(pytest.approx(10.0), pytest.approx(10.0), pytest.approx(10.0))
    assert drawn.expected_s == pytest.approx(1_000.0)
    half_s = 1.96 * 400 * np.std([1, 2, 3, 4], ddof=1) / 2 * (1 - 4 / 400) ** 0.5
    assert drawn.high_s - drawn.expected_s == pytest.approx(half_s)


def test_queries_that_ask_nothing_count_in_the_sample():
    asks_nothing = demand([100, 100], query=[0, 2], num_counted=4, num_queries=8)

    assert forecast(rates((100, 100.0), spread=0.0), [asks_nothing]).expected_s == pytest.approx(4.0)


@given(st.integers(0, 2**32 - 1))
def test_nineteen_of_twenty_intervals_hold_the_total(seed):
    rng = np.random.default_rng(seed)
    by_query = rng.gamma(2.0, 10.0, 5_000)
    held = 0
    for _ in range(60):
        drawn = rng.choice(by_query, 200, replace=False)
        held += abs(drawn.mean() * 5_000 - by_query.sum()) <= half_width(drawn, 5_000)

    assert held >= 48  # 57 expected; fewer than 48 once in 10^4


def test_a_deadline_is_met_for_sure_or_perhaps():
    told = Forecast(80.0, 100.0, 120.0)

    assert [told.meets(seconds) for seconds in (120, 119, 100, 99)] == ["yes", "perhaps", "perhaps", "no"]
    assert told.gpu_hours(4) == (80 * 4 / 3600, 120 * 4 / 3600)


@given(st.integers(2, 64), st.integers(1, 20_000))
def test_the_slowest_of_several_shards_takes_between_an_even_share_and_all(num_shards, num_queries):
    alone = Forecast(80.0, 100.0, 120.0)

    told = alone.in_shards(num_shards, num_queries)

    assert told.low_s == pytest.approx(80.0 / num_shards)
    assert 100.0 / num_shards < told.expected_s <= 100.0
    assert told.low_s < told.expected_s < told.high_s <= 120.0


def test_one_shard_is_the_night_itself():
    assert Forecast(80.0, 100.0, 120.0).in_shards(1, 50) == Forecast(80.0, 100.0, 120.0)


@pytest.mark.parametrize(("num_shards", "num_queries"), [(2, 200), (8, 200), (8, 5_000), (32, 2_000)])
def test_the_slowest_shard_is_the_one_that_the_hash_makes(num_shards, num_queries):
    """Shares of the largest of several shards, over 200 sets of ids."""
    largest = []
    for night in range(200):
        shards = [shard_of(f"{night}-{number}", num_shards) for number in range(num_queries)]
        largest.append(np.bincount(shards).max() / num_queries)

    told = Forecast(1.0, 1.0, 1.0).in_shards(num_shards, num_queries)

    assert told.expected_s == pytest.approx(np.mean(largest), rel=0.02)
    assert 0.88 <= np.mean(np.array(largest) <= told.high_s) <= 1.0
    assert min(largest) >= told.low_s


def test_an_estimate_follows_from_the_data_sheet():
    h100, h200 = DEVICES
    mean = 2_000
    prompts = demand([mean] * 10)

    told = forecast(h100.estimate(8e9, mean), [prompts])

    flops = 10 * mean * (2 * 8e9 + 2 * 32 * 4096 * mean)
    assert told.low_s == pytest.approx(flops / 989e12 / 0.60, rel=0.02)
    assert told.high_s == pytest.approx(flops / 989e12 / 0.35, rel=0.02)
    assert h200.estimate(8e9, mean).decode_tokens_per_s > h100.estimate(8e9, mean).decode_tokens_per_s
    assert h100.estimate(70e9, mean) is None
    assert h200.estimate(8e9, mean).seconds(prompts) == pytest.approx(h100.estimate(8e9, mean).seconds(prompts))


# ---- finish_by


def test_finish_by_is_the_first_such_time_after_the_start():
    night = NightSettings(name="n", timezone="Asia/Seoul", finish_by="06:30")
    start = datetime(2026, 11, 28, 16, 30, tzinfo=UTC)  # 01:30 in Seoul, the next day

    assert night.ends_at(start) == datetime(2026, 11, 29, 6, 30, tzinfo=ZoneInfo("Asia/Seoul"))
    assert night.ends_at(start + timedelta(hours=5)) == datetime(2026, 11, 30, 6, 30, tzinfo=ZoneInfo("Asia/Seoul"))
    assert NightSettings(name="n").ends_at(start) is None


def test_finish_by_is_wall_time_also_when_the_clocks_change():
    night = NightSettings(name="n", timezone="Europe/Berlin", finish_by="06:30")
    start = datetime(2026, 10, 25, 0, 30, tzinfo=ZoneInfo("Europe/Berlin"))  # an hour comes twice that night

    assert night.ends_at(start).astimezone(UTC) == datetime(2026, 10, 25, 5, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "finish_by", "ends_at"),  # UTC; the hour from 02:00 comes twice on 31 October, and not on 28 March
    [
        ("2027-10-31T00:10", "02:30", "2027-10-31T00:30"),  # from the first 02:10 to the first 02:30
        ("2027-10-31T00:45", "02:30", "2027-10-31T01:30"),  # from the first 02:45 to the second 02:30
        ("2027-10-31T01:10", "02:30", "2027-10-31T01:30"),
        ("2027-10-31T01:45", "02:30", "2027-11-01T01:30"),
        ("2027-03-27T23:00", "02:30", "2027-03-28T01:30"),  # two and a half hours after midnight, as on any night
        ("2027-03-28T01:31", "02:30", "2027-03-29T00:30"),
        ("2027-03-27T01:30", "02:30", "2027-03-28T01:30"),
    ],
)
def test_finish_by_in_an_hour_that_comes_twice_or_not_at_all(start, finish_by, ends_at):
    night = NightSettings(name="n", timezone="Europe/Berlin", finish_by=finish_by)

    found = night.ends_at(datetime.fromisoformat(f"{start}+00:00"))

    assert found.astimezone(UTC) == datetime.fromisoformat(f"{ends_at}+00:00")


@pytest.mark.parametrize("text", ["6:30", "24:00", "06:60", "0630", "06:30:00"])
def test_a_finish_by_that_is_no_time_of_day_is_refused(text):
    with pytest.raises(ValueError, match="finish_by"):
        NightSettings(name="n", finish_by=text)


def test_the_end_is_foretold_from_the_windows_since_the_first_batch():
    start = datetime(2026, 11, 29, 1, 30, tzinfo=UTC)
    deadline = Deadline(start + timedelta(hours=5))
    assert deadline.expected_end(start, 40, 100) is None  # it has not begun
    deadline.begin(start)

    told = [
        deadline.expected_end(start + timedelta(minutes=10 * batch), 10 * batch, 100 - 10 * batch)
        for batch in (1, 2, 3)
    ]

    assert told == [None, None, start + timedelta(minutes=100)]
    assert not deadline.has_passed(start + timedelta(hours=5) - timedelta(seconds=1))
    assert deadline.has_passed(start + timedelta(hours=5))
