"""The simulation: the same for the same seed, exact where nothing is noisy, and costs that are counts."""

import signal

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.cli import main
from tasks.schedule.rankings import WindowKey
from tasks.schedule.seeds import Seed
from tasks.schedule.windows import Window
from tasks.study.simulation import (
    CONDITIONS,
    CONTENDERS,
    GRADE_SHARES,
    Comparator,
    SimulationRequest,
    draw_query,
    grade_of,
    ndcg,
    prompt_tokens_of,
    simulate,
)
from tasks.system.errors import ConfigError

BY_NAME = {contender.name: contender for contender in CONTENDERS}
CHEAP = [contender for contender in CONTENDERS if not contender.name.startswith("pairwise")]
IID, SYSTEMATIC, RANDOM_START = CONDITIONS
INEXACT = {  # also with a comparator that knows
    *("first stage", "sliding w20 s10, depth 30", "sliding w20 s10, score gap 0.8", "sliding w10 s5"),
    *("tourrank 1", "tourrank 2", "tourrank 10", "jointrank w20 r2 page_rank", "jointrank w20 r4 win_rate"),
}


def command(capsys, *arguments):
    """Exit code, stdout and stderr."""
    before, code = signal.getsignal(signal.SIGTERM), 0
    try:
        main([str(each) for each in arguments])
    except SystemExit as end:
        code = end.code or 0
    finally:
        signal.signal(signal.SIGTERM, before)
    return (code, *capsys.readouterr())


def test_a_seed_is_a_table():
    first, again, other = [
        simulate(SimulationRequest(seed=seed, queries=2, candidates=30), CHEAP) for seed in (3, 3, 4)
    ]

    assert first.table() == again.table()
    assert first.rows().equals(again.rows())
    assert first.rows() != other.rows()


def test_a_row_does_not_depend_on_the_others():
    request = SimulationRequest(queries=3, candidates=40)

    (alone,) = simulate(request, [BY_NAME["tdpart w20 k10"]]).standings
    among = simulate(request, CHEAP).standings

    assert alone in among


def test_what_is_drawn_does_not_depend_on_the_process():
    query = draw_query(5, Seed("0"), IID)

    assert [round(each, 6) for each in query.relevance] == [-1.639119, 0.950646, 0.466737, -0.536285, 0.267175]


def test_a_random_start_has_the_same_candidates_in_another_order():
    normal, shuffled = (draw_query(30, Seed("0"), condition) for condition in (IID, RANDOM_START))

    assert sorted(normal.relevance) == sorted(shuffled.relevance)
    assert normal.relevance != shuffled.relevance
    assert list(shuffled.scores) == sorted(shuffled.scores, reverse=True)


def test_every_list_has_something_relevant():
    assert all(max(draw_query(2, Seed(str(number)), IID).grades) > 0 for number in range(50))


def test_grades_have_their_shares():
    relevance = np.random.default_rng(0).standard_normal(100_000)
    grades = np.array([grade_of(each) for each in relevance])

    shares = [(grades >= grade).mean() for grade in (3, 2, 1)]
    assert shares == pytest.approx(GRADE_SHARES, abs=0.005)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30).filter(any))
def test_ndcg_is_that_of_ir_measures(grades):
    qrels = [ir_measures.Qrel("q", str(doc), grade) for doc, grade in enumerate(grades)]
    run = [ir_measures.ScoredDoc("q", str(doc), -float(doc)) for doc in range(len(grades))]
    (measured,) = ir_measures.iter_calc([ir_measures.nDCG @ 10], qrels, run)

    assert ndcg(grades) == pytest.approx(measured.value, abs=1e-12)


def test_without_noise_every_exact_strategy_is_perfect():
    simulation = simulate(SimulationRequest(queries=2, candidates=60, noise=0.0))

    assert len(simulation.standings) == len(CONTENDERS)
    for standing in simulation.standings:
        means = [each.mean for each in standing.ndcg]
        assert (means == [1.0] * len(CONDITIONS)) == (standing.name not in INEXACT), standing.name


@pytest.mark.parametrize(
    ("name", "windows", "rounds", "slots", "prompt_tokens"),
    [
        ("first stage", 0, 0, 0, 0),
        ("pointwise", 100, 1, 100, 100 * 125 + 100 * 90),
        ("single", 1, 1, 100, 100 * 125 + 125),
        ("sliding w20 s10", 9, 9, 180, 180 * 125 + 9 * 125),
        ("sliding w20 s10, 2 passes", 18, 11, 360, 360 * 125 + 18 * 125),
        ("sliding w20 s10, depth 30", 2, 2, 40, 40 * 125 + 2 * 125),
        ("tourrank 1", 13, 5, 185, 185 * 125 + 13 * 125),
        ("jointrank w20 r4 win_rate", 20, 1, 400, 400 * 125 + 20 * 125),
        ("cascade 30, sliding w20 s10", 102, 3, 140, 140 * 125 + 100 * 90 + 2 * 125),
        ("consensus 3 x sliding w20 s10", 27, 9, 540, 540 * 125 + 27 * 125),
    ],
)
def test_costs_are_the_counts_of_windows_and_slots(name, windows, rounds, slots, prompt_tokens):
    (standing,) = simulate(SimulationRequest(queries=2), [BY_NAME[name]]).standings

    assert (standing.windows, standing.rounds, standing.slots) == (windows, rounds, slots)
    assert (standing.prompt_tokens, standing.output_tokens) == (prompt_tokens, windows)


def test_a_window_that_picks_one_is_short_and_one_that_picks_several_is_not():
    assert prompt_tokens_of(Window((0, 1, 2), "select", ask=1)) == 3 * 125 + 90
    assert prompt_tokens_of(Window((0, 1, 2), "select", ask=2)) == 3 * 125 + 125


def test_the_cheapest_stands_first_and_a_dear_one_says_that_it_had_fewer_queries():
    asked = [BY_NAME["pairwise all pairs"], BY_NAME["single"]]

    table = simulate(SimulationRequest(queries=4, candidates=40), asked).table()

    assert [(row[0], row[1]) for row in table.rows] == [("single", "4"), ("pairwise all pairs", "2")]
    assert "pairwise all pairs (2)" in table.note


def test_the_comparator_draws_anew_for_every_window_but_not_for_the_same_one():
    query = draw_query(20, Seed("0"), IID)
    comparator = Comparator(query, noise=0.5, systematic_share=0.0, seed=Seed("0"))
    window = Window(tuple(range(20)))

    told = [comparator.answer(key, window) for key in (WindowKey(0, 0), WindowKey(0, 0), WindowKey(0, 1))]

    assert told[0] == told[1] != told[2]
    assert sum(np.exp(told[0].logprobs)) == pytest.approx(1.0)
    assert list(told[0].logprobs) == sorted(told[0].logprobs, reverse=True)


def test_a_candidate_alone_is_told_by_what_the_comparator_sees():
    query = draw_query(20, Seed("0"), IID)
    comparator = Comparator(query, noise=0.0, systematic_share=0.0, seed=Seed("0"))

    assert comparator.answer(WindowKey(0, 0), Window((4,), "judge")).logprobs == (query.relevance[4],)


def test_noise_has_its_size_and_its_systematic_half():
    """Judged 2,000 times, a candidate is seen at relevance + bias, spread by the half that passes."""
    query = draw_query(2, Seed("0"), SYSTEMATIC)
    comparator = Comparator(query, noise=0.5, systematic_share=0.5, seed=Seed("0"))

    seen = [comparator.answer(WindowKey(0, number), Window((1,), "judge")).logprobs[0] for number in range(2000)]

    half = 0.5 * 0.5**0.5
    assert np.mean(seen) == pytest.approx(query.relevance[1] + half * query.bias[1], abs=0.03)
    assert np.std(seen) == pytest.approx(half, rel=0.05)


@pytest.mark.parametrize("sizes", [{"queries": 1}, {"candidates": 1}, {"noise": -1.0}, {"noise": float("nan")}])
def test_sizes_that_give_no_table_are_refused(sizes):
    with pytest.raises(ConfigError, match="needed"):
        SimulationRequest(**sizes)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["study"], "give a settings file"),
        (["study", "--simulate", "--num-queries", "1"], "--num-queries 1: at least 2"),
        (["study", "--simulate", "--format", "parquet"], "parquet"),
    ],
)
def test_a_study_that_cannot_be_is_a_usage_error(capsys, arguments, words):
    code, _, message = command(capsys, *arguments)

    assert code == 2
    assert words in message
    assert len(message.strip().splitlines()) == 1
