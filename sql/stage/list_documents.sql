-- The needed documents. doc_id
select doc_id from documents order by doc_index;
