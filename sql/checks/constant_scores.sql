-- Queries with four or more documents whose model scores are all equal. query_id | num_offending: 1
select query_id, 1 as num_offending
from scores
where run_id = $run_id and model_score is not null and score_kind in ('reciprocal_rank', 'p_yes', 'query_likelihood')
group by query_id
having count(*) >= 4 and min(model_score) = max(model_score)
order by query_id;
