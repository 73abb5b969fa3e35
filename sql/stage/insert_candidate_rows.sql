-- Adds one Arrow batch of flat candidates, of a sample those of the queries that are drawn (insert_query_rows).
insert into candidate_rows by name
select query_id, doc_id, doc_id as doc_key, given_rank, given_score
from rows
where $sample_share >= 1 or md5_number_lower($sample_seed || query_id) < $sample_share * 18446744073709551616;
