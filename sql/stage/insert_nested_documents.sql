-- Adds the documents inside one Arrow batch of unrolled nested rows, of a sample those of the queries that are drawn.
insert into document_rows by name
select row_no, doc_id, doc_id || chr(31) || hash(text) as doc_key
from rows
where
    doc_id is not null
    and ($sample_share >= 1 or md5_number_lower($sample_seed || query_id) < $sample_share * 18446744073709551616);
