-- Rankings and quality of a run against judgments.

-- name: list_queries
-- The queries of a run. query_id
select query_id from rankings where run_id = $run_id;

-- name: list_orders
-- A run's orders, for evaluation. query_id | doc_id | first_stage_rank | rank
select query_id, doc_id, first_stage_rank, rank from all_scores where run_id = $run_id;

-- name: list_answers
-- What the windows of a span of a run's queries showed and were answered, in the runs that asked them, where that is kept.
-- docs, outcome_order: places in the first-stage order, from 0 | outcome_logprobs: parallel to outcome_order
select
    windows.run_id,
    windows.query_id,
    windows.round,
    windows.window_no,
    windows.attempt,
    windows.decode_mode,
    windows.docs,
    windows.num_listed,
    windows.num_missing,
    outcomes.outcome_order,
    outcomes.outcome_logprobs
from rankings
join windows on windows.run_id = rankings.scores_run_id and windows.query_id = rankings.query_id
join outcomes
    on outcomes.run_id = windows.run_id
    and outcomes.query_id = windows.query_id
    and outcomes.round = windows.round
    and outcomes.window_no = windows.window_no
    and outcomes.attempt = windows.attempt
where rankings.run_id = $run_id and rankings.query_id between $first_query_id and $last_query_id
order by windows.query_id, windows.round, windows.window_no, windows.attempt;

-- name: list_replaced_metrics
-- Means that an evaluation replaces by ones of another rule: other judgments, or another set of queries. measure | ranking | value | num_queries | is_other_judgments
select
    stored.measure,
    stored.ranking,
    stored.value,
    stored.num_queries,
    stored.qrels_digest not in (select qrels_digest from incoming) as is_other_judgments
from metrics as stored
left join incoming
    on incoming.measure = stored.measure and incoming.ranking = stored.ranking and incoming.query_id is null
where
    stored.run_id = $run_id
    and stored.query_id is null
    and (
        stored.qrels_digest not in (select qrels_digest from incoming)
        or stored.num_queries <> incoming.num_queries
    )
order by stored.measure, stored.ranking;

-- name: delete_metrics
-- Makes room for a repeated evaluation: the same measures, and all that was measured against other judgments.
delete from metrics
where
    run_id = $run_id
    and (
        measure in (select measure from incoming)
        or qrels_digest not in (select qrels_digest from incoming)
    );
