-- The published run of a series that a night may reuse: of the greatest night not after it.
-- The columns of runs
select *
from runs
where name = $name and night <= $night::date and status = 'published'
order by night desc, published_at desc
limit 1;
