-- Every query of the run. num_candidates: rows that can be ranked | status: ready, no_candidates, quarantined
create table staged_queries as
with lists as (
    select query_index, count(*)::integer as num_candidates
    from ordered
    anti join bad_documents using (doc_order)
    group by query_index
)
select
    queries.query_index,
    queries.query_id,
    queries.text,
    coalesce(lists.num_candidates, 0) as num_candidates,
    case
        when queries.reason is not null then 'quarantined'
        when lists.num_candidates is null then 'no_candidates'
        else 'ready'
    end as status
from queries
left join lists using (query_index);
