"""Tests of the pages in a real browser, the Chromium of the distribution. `.ci/run web` runs them."""
