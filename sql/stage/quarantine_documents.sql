-- Takes documents without text out of the lists, and sets their candidate rows aside.
create table bad_documents as
select documents.doc_order, documents.doc_id, bad.reason
from bad
join documents using (doc_index);

insert into quarantine by name
select 'candidates' as source, queries.query_id, bad_documents.doc_id, bad_documents.reason, null as detail
from ordered
join bad_documents using (doc_order)
join queries using (query_index);
