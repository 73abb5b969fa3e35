-- One query of a run.

-- name: ranking
-- One query of a run. The columns of rankings that people ask about, and the cuts of all its windows
select
    rankings.status,
    rankings.num_candidates,
    rankings.depth,
    rankings.num_windows,
    rankings.num_rounds,
    rankings.scores_run_id,
    rankings.reuse_reason,
    (
        select sum(truncated_passages)::bigint
        from windows
        where windows.run_id = rankings.scores_run_id and windows.query_id = rankings.query_id
    ) as truncated_passages
from rankings
where run_id = $run_id and query_id = $query_id;

-- name: windows
-- A query's windows, in the run that asked them. docs: doc_ids in prompt order | tokens | seconds
select
    windows.round,
    windows.window_no as window_no,
    windows.attempt,
    windows.batch_no,
    (
        select string_agg(scores.doc_id, ' ' order by shown.place)
        from (select unnest(windows.docs) as doc, generate_subscripts(windows.docs, 1) as place) as shown
        join scores
            on scores.run_id = rankings.scores_run_id
            and scores.query_id = windows.query_id
            and scores.first_stage_rank = shown.doc + 1
    ) as docs,
    windows.prompt_tokens,
    windows.cached_tokens,
    windows.output_tokens,
    windows.truncated_passages,
    windows.truncated_tokens,
    windows.decode_mode,
    windows.parse_status,
    windows.num_listed,
    windows.num_missing,
    windows.id_mass,
    windows.ttft_s
from rankings
join windows on windows.run_id = rankings.scores_run_id and windows.query_id = rankings.query_id
where rankings.run_id = $run_id and rankings.query_id = $query_id
order by windows.round, windows.window_no, windows.attempt;

-- name: outcomes
-- What a query's windows answered. best_first: doc_ids | answer: the model's text where it was not a clean one
select
    outcomes.round,
    outcomes.window_no as window_no,
    outcomes.attempt,
    (
        select string_agg(scores.doc_id, ' ' order by shown.place)
        from (
            select unnest(outcomes.outcome_order) as doc, generate_subscripts(outcomes.outcome_order, 1) as place
        ) as shown
        join scores
            on scores.run_id = rankings.scores_run_id
            and scores.query_id = outcomes.query_id
            and scores.first_stage_rank = shown.doc + 1
    ) as best_first,
    outcomes.answer
from rankings
join outcomes on outcomes.run_id = rankings.scores_run_id and outcomes.query_id = rankings.query_id
where rankings.run_id = $run_id and rankings.query_id = $query_id
order by outcomes.round, outcomes.window_no, outcomes.attempt;

-- name: quarantine
-- What was set aside of a query. source | doc_id | reason | detail
select source, doc_id, reason, detail
from quarantine
where run_id = $run_id and query_id = $query_id
order by source, doc_id;

-- name: order
-- A query's rows, best first. moved: places up
select
    rank,
    doc_id,
    first_stage_rank,
    first_stage_rank - rank as moved,
    score,
    score_kind,
    model_score,
    first_stage_score,
    status
from all_scores
where run_id = $run_id and query_id = $query_id
order by rank;
