-- Adds one Arrow batch of unrolled nested candidates.
insert into candidate_rows by name
select query_id, doc_id, doc_id || chr(31) || hash(text) as doc_key, given_rank, given_score
from rows;
