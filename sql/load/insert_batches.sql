-- Moves the batches of committed batches from the spool; columns are matched by name.
insert into batches by name
select * from incoming;
