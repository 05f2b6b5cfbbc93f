"""What several rules share: dataflow, loaders, places in sources, edits."""
