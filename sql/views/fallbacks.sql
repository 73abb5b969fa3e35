-- Windows that the model did not rank.
create or replace view fallbacks as
select
    run_id,
    query_id,
    round,
    window_no,
    attempt,
    len(docs) as num_passages,
    num_listed,
    num_missing,
    parse_status,
    finish_reason,
    request_id
from windows
where num_missing > num_listed;

comment on view fallbacks is 'Answers that named fewer than half of what they had to: asked again in another order where attempts were left, else the rest keeps its order behind what was named.';
comment on column fallbacks.run_id is 'Run';
comment on column fallbacks.query_id is 'Query';
comment on column fallbacks.round is 'Round';
comment on column fallbacks.window_no is 'Window within its round';
comment on column fallbacks.attempt is 'Attempt';
comment on column fallbacks.num_passages is 'Candidates in the window';
comment on column fallbacks.num_listed is 'Candidates named';
comment on column fallbacks.num_missing is 'Candidates that had to be named and were not';
comment on column fallbacks.parse_status is 'Why, see windows.parse_status';
comment on column fallbacks.finish_reason is 'stop or length';
comment on column fallbacks.request_id is 'Name of the request in logs';
