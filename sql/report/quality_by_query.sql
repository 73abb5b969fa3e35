-- One measure of each judged query before and after, best gain first. query_id | first_stage | reranked | difference
select
    query_id,
    max(value) filter (ranking = 'first_stage') as first_stage,
    max(value) filter (ranking = 'reranked') as reranked,
    reranked - first_stage as difference
from metrics
where run_id = $run_id and measure = $measure and query_id is not null
group by query_id
having count(distinct ranking) = 2
order by difference desc, query_id;
