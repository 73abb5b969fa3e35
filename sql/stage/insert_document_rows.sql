-- Adds one Arrow batch of flat documents.
insert into document_rows by name
select row_no, doc_id, doc_key from rows;
