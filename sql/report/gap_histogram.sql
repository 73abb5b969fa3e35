-- Inter-token latencies of a run, its batches' histograms merged. gap_s: seconds, within 0.5 % | num_gaps
with gaps as (
    select unnest(itl_bins) as bin, unnest(itl_bin_counts)::bigint as num_gaps
    from batches
    where run_id = $run_id
)

select pow(1.01, bin) as gap_s, sum(num_gaps)::bigint as num_gaps
from gaps
group by bin
order by bin;
