"""The training step of the other programs on PyTorch without any exchange, for contestants.py: the speed of a
system whose exchange takes no time. Each process trains a model of its own with torch.optim.SGD, which other programs have on servers or
on each worker."""
import pytorch_step

args = pytorch_step.arguments(__doc__)

pytorch_step.measure(pytorch_step.step_of(pytorch_step.new_model(), args), args.steps, args.warmup, lambda: None)
