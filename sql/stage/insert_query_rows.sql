-- Adds one Arrow batch of queries.
insert into query_rows by name
select query_id, text, num_tokens from rows;
