"""The run on disk: names of files, columns of the index, and the JSON documents.

layout         names of files, columns of the index, codes in its rows
documents      the JSON documents, validated before they are used
control        requests to a running training, as documents in the run's control folder
shard          the index column `shard`
run_patterns   regular expressions from a run, searched by an engine that cannot hang

Writers (session, flusher, sinks) and readers (trial, rules) both import this package; it imports only text,
errors and modes of tdcore.
"""
