-- Repairs made. note | num_rows
select note, num_rows from notes order by note;
