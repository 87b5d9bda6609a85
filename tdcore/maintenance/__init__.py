"""Operations on the files of a run that has been written, one per command of the CLI.

merge_run   `tdcore merge`: joins small files into larger ones
remove      `tdcore rm`: deletes the files of a run
upload      `tdcore upload`: puts data that waits in a spool into its bucket
"""
