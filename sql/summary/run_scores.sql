-- A run's orders, for evaluation. query_id | doc_id | first_stage_rank | rank
select rankings.query_id, scores.doc_id, scores.first_stage_rank, scores.rank
from rankings
join scores on scores.run_id = rankings.scores_run_id and scores.query_id = rankings.query_id
where rankings.run_id = $run_id;
