-- Queries for which the first stage found no candidate; skipped for a trial, which has few. query_id | num_offending: 1
select rankings.query_id, 1 as num_offending
from rankings
join runs using (run_id)
where run_id = $run_id and rankings.status = 'no_candidates' and not coalesce(runs.is_limited, false)
order by query_id;
