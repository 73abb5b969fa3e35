-- Adds one Arrow batch of queries, of a sample those that are drawn: the hash of seed and id is below its share of 2^64.
insert into query_rows by name
select query_id, text, num_tokens
from rows
where $sample_share >= 1 or md5_number_lower($sample_seed || query_id) < $sample_share * 18446744073709551616;
