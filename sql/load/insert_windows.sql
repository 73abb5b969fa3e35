-- Moves the windows of committed batches from the spool; columns are matched by name.
insert into windows by name
select * from incoming;
