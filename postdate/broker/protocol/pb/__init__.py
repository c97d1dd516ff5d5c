"""The classes that `make proto` generates from `proto/`; nothing here is written by hand."""
