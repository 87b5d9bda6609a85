"""The parts that the hooks for gradient boosting share. Users import tdcore.hooks.xgboost or .lightgbm.

hook.py       BoostingHook: arguments, rounds, stop requests
rounds.py     records the values of one saved round
ensemble.py   Ensemble: the interface through which rounds.py reads a model of either library
settings.py   hyper-parameters as numbers and as text
tables.py     tables of trees: columns, categories
"""
