-- Adds one Arrow batch of flat documents; for a sample only those that its candidates name.
insert into document_rows by name
select row_no, doc_id, doc_key
from rows
where not $only_named or doc_key in (select doc_key from candidate_rows);
