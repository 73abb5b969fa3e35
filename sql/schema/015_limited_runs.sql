-- A trial on the first queries says so, so that it is not published by hand.
alter table runs add column is_limited boolean;

update runs set is_limited = false where status = 'published';

comment on column runs.is_limited is 'Whether only the first queries were ranked (a trial, never published); null for a run older than this column';
