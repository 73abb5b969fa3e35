-- A query's rows, best first. moved: places up
select
    scores.rank,
    scores.doc_id,
    scores.first_stage_rank,
    scores.first_stage_rank - scores.rank as moved,
    scores.score,
    scores.score_kind,
    scores.model_score,
    scores.first_stage_score,
    scores.status
from rankings
join scores on scores.run_id = rankings.scores_run_id and scores.query_id = rankings.query_id
where rankings.run_id = $run_id and rankings.query_id = $query_id
order by scores.rank;
