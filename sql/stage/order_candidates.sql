-- Each list once, in first-stage order, cut at top_k. place: from 1, before documents without text leave.
-- Rank first where all of a list's ranks are there, then score, then doc_id; equal pairs keep their best place.
create table ordered as
with matched as (
    select queries.query_index, documents.doc_order, candidates.given_rank, candidates.given_score
    from candidate_rows as candidates
    join queries using (query_id)
    join named_documents as documents using (doc_key)
    where queries.reason is null and candidates.doc_id is not null
),

deduplicated as (
    select
        query_index,
        doc_order,
        arg_min(given_score, coalesce(given_rank, 9223372036854775807)) as score_at_best_rank,
        max(given_score) as best_score,
        min(given_rank) as given_rank,
        bool_or(given_rank is null) as has_null_rank,
        count(*)::integer as num_rows
    from matched
    group by query_index, doc_order
),

flagged as (
    select
        query_index,
        doc_order,
        given_rank,
        coalesce(score_at_best_rank, best_score) as given_score,
        num_rows,
        bool_or(has_null_rank) over (partition by query_index) as by_score
    from deduplicated
)

select
    query_index,
    doc_order,
    given_score,
    given_rank,
    by_score,
    num_rows,
    row_number() over (
        partition by query_index
        order by case when not by_score then given_rank end, given_score desc nulls last, doc_order
    )::integer as place
from flagged
qualify $top_k is null or place <= $top_k;
