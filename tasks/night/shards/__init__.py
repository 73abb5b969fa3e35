"""A run ranked in parts: one shard by itself, and the stage of the night that has all of them ranked."""
