-- Moves the quarantine of committed batches from the spool; columns are matched by name.
insert into quarantine by name
select * from incoming;
