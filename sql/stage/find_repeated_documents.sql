-- Every row of a doc_id that comes more than once. row_no | doc_id
select row_no, doc_id
from document_rows
where doc_id in (select doc_id from document_rows group by doc_id having count(*) > 1);
