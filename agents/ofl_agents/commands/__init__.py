"""The subcommands of `ofl`: each module has `add_options(parser)` and `run(options) -> exit code`."""
