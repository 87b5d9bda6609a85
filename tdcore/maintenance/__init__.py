"""Operations on the files of a run that has been written, one per command of the CLI.

merge_run   `tdcore merge`: join small files into larger files
remove      `tdcore rm`: delete the files of a run
upload      `tdcore upload`: upload the data in a spool to its bucket
"""
