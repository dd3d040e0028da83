"""Why two runs diverged: the traced repeat of a pair, and what its evidence says.

`optrace` (with `operators`, `storages`, `rerun`, `sites`, `reseeds`) runs inside the user's process and writes a
trace beside the trail; `tracefile` reads it; `align`, `classify` and `drill` draw the conclusion and load no torch.
`hypotheses`, `weigh` and `buffers` judge dumped buffers; `toggles` and `causes` judge experiments.
"""
