-- Deletes every row of the queries of torn.
delete from scores where (run_id, query_id) in (select run_id, query_id from torn);
delete from rankings where (run_id, query_id) in (select run_id, query_id from torn);
delete from windows where (run_id, query_id) in (select run_id, query_id from torn);
delete from outcomes where (run_id, query_id) in (select run_id, query_id from torn);
