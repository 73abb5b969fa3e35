-- The first ten of some queries, of both orders. query_id | doc_id | rank | first_stage_rank | status
select scores.query_id, scores.doc_id, scores.rank, scores.first_stage_rank, scores.status
from rankings
join scores on scores.run_id = rankings.scores_run_id and scores.query_id = rankings.query_id
where
    rankings.run_id = $run_id
    and rankings.query_id in (select unnest($query_ids::varchar[]))
    and (scores.rank <= 10 or scores.first_stage_rank <= 10)
order by scores.query_id, scores.rank;
