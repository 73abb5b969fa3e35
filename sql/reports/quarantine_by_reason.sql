-- Rows set aside, by night and reason.
select runs.night, runs.run_id, quarantine.source, quarantine.reason, count(*) as num_rows
from quarantine
join runs using (run_id)
group by runs.night, runs.run_id, quarantine.source, quarantine.reason
order by runs.night desc, runs.run_id, num_rows desc;
