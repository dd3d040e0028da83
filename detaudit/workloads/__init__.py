"""Reference trainings to audit. Each is clean by default and takes `--inject FAULT[,FAULT]` to become nondeterministic.

`per_rl` is an off-policy agent with prioritised replay; `digits` classifies scikit-learn's digits. Both run as
`python -m detaudit.workloads.NAME`. Nothing in the package imports them.
"""
