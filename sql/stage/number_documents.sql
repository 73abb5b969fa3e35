-- The documents that any candidate names, at their first row. doc_order: order by id, to break ties with an integer.
create table named_documents as
with named as (
    select doc_key, any_value(doc_id) as doc_id, min(row_no) as row_no
    from document_rows
    semi join candidate_rows using (doc_key)
    group by doc_key
)
select doc_key, doc_id, row_no, row_number() over (order by doc_key)::integer as doc_order
from named;
