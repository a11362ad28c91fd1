"""The arithmetic that the experiments share.

`rates` computes error rates, thresholds and accuracies from distances; `resampling` computes bootstrap intervals.
"""
