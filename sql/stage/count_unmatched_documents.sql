-- Candidates whose doc_id is in no document. num_rows: with a doc_id | num_unmatched | missing, there: three ids of each
with matched as (
    select candidates.doc_id, known.doc_key is null as is_missing
    from candidate_rows as candidates
    left join named_documents as known using (doc_key)
    where candidates.doc_id is not null
)

select
    (select count(*) from matched) as num_rows,
    (select count(*) from matched where is_missing) as num_unmatched,
    (select string_agg(id, ', ') from (select distinct doc_id as id from matched where is_missing order by id limit 3))
        as missing,
    (select string_agg(id, ', ') from (select distinct doc_id as id from document_rows order by id limit 3)) as there;
