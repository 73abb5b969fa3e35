-- Reads another database as `nights`, beside the one that is open.
attach $path as nights (read_only);
