-- What a run's windows answered, within a span of query ids, in the order of replay.
-- query_id | round | window_no | attempt | outcome_order | outcome_logprobs | num_listed
select
    outcomes.query_id,
    outcomes.round,
    outcomes.window_no,
    outcomes.attempt,
    outcomes.outcome_order,
    outcomes.outcome_logprobs,
    windows.num_listed
from outcomes
join windows using (run_id, query_id, round, window_no, attempt)
where outcomes.run_id = $run_id and outcomes.query_id between $first_query_id and $last_query_id
order by outcomes.query_id, outcomes.round, outcomes.window_no, outcomes.attempt;
