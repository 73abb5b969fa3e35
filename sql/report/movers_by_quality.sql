-- The ten queries of a run whose measure changed most. query_id | first_stage, reranked, difference: the measure's values
select
    metrics.query_id,
    max(metrics.value) filter (metrics.ranking = 'first_stage') as first_stage,
    max(metrics.value) filter (metrics.ranking = 'reranked') as reranked,
    reranked - first_stage as difference
from metrics
semi join rankings on rankings.run_id = metrics.run_id and rankings.query_id = metrics.query_id
where metrics.run_id = $run_id and metrics.measure = $measure
group by metrics.query_id
having count(distinct metrics.ranking) = 2 and difference <> 0
order by abs(difference) desc, metrics.query_id
limit 10;
