-- Candidates whose query_id is in no query. num_rows: with a query_id | num_unmatched | missing, there: three ids of each
with matched as (
    select candidates.query_id, known.query_id is null as is_missing
    from candidate_rows as candidates
    left join (select distinct query_id from query_rows) as known using (query_id)
    where candidates.query_id is not null
)

select
    (select count(*) from matched) as num_rows,
    (select count(*) from matched where is_missing) as num_unmatched,
    (select string_agg(id, ', ') from (select distinct query_id as id from matched where is_missing order by id limit 3))
        as missing,
    (select string_agg(id, ', ') from (select distinct query_id as id from query_rows order by id limit 3)) as there;
