"""Training of any `torch.nn.Module`, with privacy for each record or without.

PyTorch is imported by the modules of this package and by nothing else of the library but the built-in networks; this
file and `job` import none of it. The interface:

    from ofl_iot.torch_training.job import Job, Trained                      # without PyTorch
    from ofl_iot.torch_training.trainer import FlatModel, PrivateTrainer, PlainTrainer

    model = FlatModel(module, personal=["head.*"], device="auto")
    model.size, model.full_size      # parameters that travel; those and the personal ones
    model.vector, model.travelling   # float32: all, and those that travel (views on a CPU)
    model.load(vector)               # `size` or `full_size` values
    model.bind(memory)               # live in shared memory, whose values count
    model.rebind()                   # after load_state_dict(assign=True) and the like
    model.card()                     # ModelCard(names, shapes, frozen): equal where vectors may mix

    trainer = PrivateTrainer(model, loss, engine="auto", noise=None)
    trainer.probe(x, y)              # Findings(engine, notes, seconds), or ConfigError; before anything is paid
    trainer.train(x, y, job, rng, progress=None)   # Trained(steps, sampling_rate, noise_multiplier, loss, engine, …)

    trainer = PlainTrainer(model, loss, optimiser=None, schedule=None, augment=None, loop=None)
    trainer.train(x, y, job, rng, progress=None)

`x` is an array or tensor, or a tuple of them for networks with several inputs; records are the first dimension.
`loss(outputs, targets)` is a mean or sum over records. Errors of a training leave the model as it was. Neither trainer
sets torch's number of threads: the process that trains does.

How it works: `taps` and `rules` (with a `tap_*` module for each kind of function) watch a forward pass, `gradients`
makes norms and clipped sums of what they saw, `engines` are three ways to a clipped sum, `probe` (with `checks`,
`tracing`, `choice`) finds the right one.
"""
