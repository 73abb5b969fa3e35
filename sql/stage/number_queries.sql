-- Queries in their fixed order, by id: query_index counts from 0 whatever the order of files and rows.
-- reason: why the query cannot be ranked, else null.
create table queries as
with distinct_queries as (
    select query_id, any_value(text) as text, max(num_tokens) as num_tokens
    from query_rows
    group by query_id
)
select
    (row_number() over (order by query_id) - 1)::integer as query_index,
    query_id,
    text,
    num_tokens,
    case
        when text is null then 'null query text'
        when num_tokens = 0 then 'empty query text'
        when num_tokens > $max_query_tokens then 'query too long'
    end as reason
from distinct_queries
qualify $limit_queries is null or query_index < $limit_queries;
