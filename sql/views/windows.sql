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

-- What each window showed and answered, a row a document. Filter by run_id.
create or replace view window_documents as
with shown as (
    select
        run_id,
        query_id,
        round,
        window_no,
        attempt,
        decode_mode,
        num_listed,
        unnest(docs) as doc,
        generate_subscripts(docs, 1) as place
    from windows
)

select
    shown.run_id,
    shown.query_id,
    shown.round,
    shown.window_no,
    shown.attempt,
    shown.decode_mode,
    shown.place,
    scores.doc_id,
    scores.first_stage_rank,
    scores.rank,
    list_position(outcomes.outcome_order, shown.doc) as answered_place,
    answered_place <= shown.num_listed as is_listed
from shown
join scores
    on scores.run_id = shown.run_id
    and scores.query_id = shown.query_id
    and scores.first_stage_rank = shown.doc + 1
left join outcomes
    on outcomes.run_id = shown.run_id
    and outcomes.query_id = shown.query_id
    and outcomes.round = shown.round
    and outcomes.window_no = shown.window_no
    and outcomes.attempt = shown.attempt;

comment on view window_documents is 'The documents of each window, in prompt order, and as it was answered. Windows of a reused query are those of the run in rankings.scores_run_id. Key: run_id, query_id, round, window_no, attempt, place.';
comment on column window_documents.run_id is 'Run that asked';
comment on column window_documents.query_id is 'Query';
comment on column window_documents.round is 'Round, see windows';
comment on column window_documents.window_no is 'Window within its round';
comment on column window_documents.attempt is 'Attempt, see windows';
comment on column window_documents.decode_mode is 'How it was asked, see windows';
comment on column window_documents.place is 'Place in the prompt, from 1';
comment on column window_documents.doc_id is 'Document';
comment on column window_documents.first_stage_rank is 'Place in the first stage''s order, from 1';
comment on column window_documents.rank is 'Place in the final order of the query, from 1';
comment on column window_documents.answered_place is 'Place in the window''s answer, from 1, best first; null where answers are no longer kept, see [store.keep_outcomes]';
comment on column window_documents.is_listed is 'Whether the answer named it; if not, it keeps its order behind those named; null where answered_place is';
