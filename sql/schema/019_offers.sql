-- A night killed between its publication and its export says so, and the same command does the rest.
alter table runs add column offered_at timestamptz;

update runs set offered_at = published_at where status = 'published';

comment on column runs.offered_at is 'When all that follows a publication was done: retention, export, copy, UTC; null if never, or not since it was published last';
