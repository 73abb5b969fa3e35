-- What was set aside of a query. source | doc_id | reason | detail
select source, doc_id, reason, detail
from quarantine
where run_id = $run_id and query_id = $query_id
order by source, doc_id;
