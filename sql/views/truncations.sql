-- Queries of which passages were cut.
create or replace view truncations as
select
    run_id,
    query_id,
    count(*) as num_windows,
    sum(len(docs))::bigint as num_passages,
    sum(truncated_passages)::bigint as truncated_passages,
    sum(truncated_tokens)::bigint as truncated_tokens
from windows
group by run_id, query_id
having sum(truncated_passages) > 0;

comment on view truncations is 'Queries of which passages were cut to fit. Key: run_id, query_id.';
comment on column truncations.run_id is 'Run';
comment on column truncations.query_id is 'Query';
comment on column truncations.num_windows is 'Windows asked';
comment on column truncations.num_passages is 'Passages shown, over all windows';
comment on column truncations.truncated_passages is 'Passages cut, over all windows';
comment on column truncations.truncated_tokens is 'Passage tokens left out';
