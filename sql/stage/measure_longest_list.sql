-- How many candidates the longest list has, before documents without text leave; 0 where there is none. num_candidates
select coalesce(max(place), 0)::integer as num_candidates from ordered;
