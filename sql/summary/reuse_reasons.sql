-- Why queries were ranked rather than reused, where reuse was looked for. reuse_reason | num_queries | first_query_id
select reuse_reason, count(*) as num_queries, min(query_id) as first_query_id
from rankings
where run_id = $run_id and reuse_reason is not null
group by reuse_reason
order by num_queries desc, reuse_reason;
