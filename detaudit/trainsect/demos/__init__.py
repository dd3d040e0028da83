"""Two small training runs that collapse for a known cause: `mlp` (one poisoned sample) and `transformer` (a
concentration of bad batches). Each module is a Trainsect target, too; `run` records and diagnoses them."""
