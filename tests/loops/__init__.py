"""Generated training loops, a reference recorder that follows the rule of steps, and their comparison.

The rule of steps is the section "What a step is" of docs/pytorch.md.

python -m tests.loops --loops 5000 --seed 0 --processes 2     runs many loops and prints a summary
python -m tests.loops --ranks 2 --loops 40                    the same under DistributedDataParallel
pytest tests/loops                                            the quick tier
TDCORE_FULL=1 pytest tests/loops                              the full tier, 5,000 loops and more
"""
