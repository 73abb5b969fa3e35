-- What was done to the input without setting rows aside, counted for the run's record.
insert into notes
select note, num_rows
from (
    select 'duplicate queries' as note, count(*) - count(distinct query_id) as num_rows from query_rows
    union all
    select 'duplicate documents', count(*) - count(distinct doc_key) from document_rows where doc_key = doc_id
    union all
    select 'duplicate candidates', sum(num_rows - 1)::bigint from ordered
    union all
    select 'lists ordered by score, a rank was null', count(distinct query_index) from ordered
    where by_score and $has_rank
    union all
    select 'candidates with a tied rank', count(*) from (
        select 1 from ordered where not by_score
        qualify count(*) over (partition by query_index, given_rank) > 1
    )
    union all
    select 'candidates without a score', count(*) from ordered where given_score is null
)
where num_rows > 0;
