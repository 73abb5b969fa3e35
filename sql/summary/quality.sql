-- Quality before and after. measure | num_queries | first_stage | reranked
select
    measure,
    any_value(num_queries) as num_queries,
    max(value) filter (ranking = 'first_stage') as first_stage,
    max(value) filter (ranking = 'reranked') as reranked
from metrics
where run_id = $run_id and query_id is null
group by measure
order by measure;
