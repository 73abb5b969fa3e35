-- Moves the scores of committed batches from the spool; columns are matched by name.
insert into scores by name
select * from incoming;
