-- A run's rows over a span of queries, for export: at most $top_k a query, all where it is null. The columns of scores but run_id
select
    rankings.query_id,
    scores.doc_id,
    scores.rank,
    scores.score,
    scores.score_kind,
    scores.model_score,
    scores.first_stage_rank,
    scores.first_stage_score,
    scores.status
from rankings
join scores on scores.run_id = rankings.scores_run_id and scores.query_id = rankings.query_id
where
    rankings.run_id = $run_id
    and rankings.query_id between $first_query_id and $last_query_id
    and ($top_k::integer is null or scores.rank <= $top_k::integer)
order by rankings.query_id, scores.rank;
