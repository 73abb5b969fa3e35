"""How good a ranking is, and the files of TREC, BEIR and RankLLM."""
