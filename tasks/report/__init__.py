"""What people read: tables, charts, the page of a run, the SQL shell."""
