"""Tests of the view: answers, server, report, pages in a browser."""
