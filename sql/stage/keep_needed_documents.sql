-- The documents that a list holds after the cut, numbered in input order: doc_index counts from 0.
create table documents as
select
    (row_number() over (order by named.row_no) - 1)::integer as doc_index,
    named.doc_order,
    named.doc_id,
    named.row_no
from named_documents as named
semi join ordered using (doc_order);
