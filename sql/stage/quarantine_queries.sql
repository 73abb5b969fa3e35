-- Sets aside the queries that cannot be ranked.
insert into quarantine by name
select
    'queries' as source,
    query_id,
    null as doc_id,
    reason,
    case
        when reason = 'query too long'
            then num_tokens || ' tokens, max_query_tokens = ' || $max_query_tokens::integer
    end as detail
from queries
where reason is not null;
