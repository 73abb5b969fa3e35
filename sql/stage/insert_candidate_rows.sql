-- Adds one Arrow batch of flat candidates.
insert into candidate_rows by name
select query_id, doc_id, doc_id as doc_key, given_rank, given_score from rows;
