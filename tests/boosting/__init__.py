"""Tests of the hooks for XGBoost and LightGBM. Each file is skipped where its library is not installed."""
