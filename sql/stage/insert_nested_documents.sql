-- Adds the documents inside one Arrow batch of unrolled nested rows.
insert into document_rows by name
select row_no, doc_id, doc_id || chr(31) || hash(text) as doc_key
from rows
where doc_id is not null;
