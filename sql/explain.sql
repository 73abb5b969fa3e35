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
-- A query's windows, in the run that asked them. docs, outcome_order: places in the first-stage order, from 0; the second,
-- best first, of which the answer named num_listed | answer: the model's text where it was not a clean one
select
    windows.round,
    windows.window_no as window_no,
    windows.attempt,
    windows.decode_mode,
    windows.docs,
    windows.num_listed,
    windows.prompt_tokens,
    windows.truncated_passages,
    windows.parse_status,
    outcomes.outcome_order,
    outcomes.outcome_logprobs,
    outcomes.answer
from rankings
join windows on windows.run_id = rankings.scores_run_id and windows.query_id = rankings.query_id
left join outcomes
    on outcomes.run_id = windows.run_id
    and outcomes.query_id = windows.query_id
    and outcomes.round = windows.round
    and outcomes.window_no = windows.window_no
    and outcomes.attempt = windows.attempt
where rankings.run_id = $run_id and rankings.query_id = $query_id
order by windows.round, windows.window_no, windows.attempt;

-- name: quarantine
-- What was set aside of a query. source | doc_id | reason | detail
select source, doc_id, reason, detail
from quarantine
where run_id = $run_id and query_id = $query_id
order by source, doc_id;

-- name: order
-- A query's rows, best first. rank | first_stage_rank | doc_id | score | model_score | status
select
    rank,
    first_stage_rank,
    doc_id,
    score,
    model_score,
    status
from all_scores
where run_id = $run_id and query_id = $query_id
order by rank;
