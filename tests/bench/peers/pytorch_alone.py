"""The training step of the other programs on PyTorch without any exchange, for contestants.py: what is left to a system whose exchange
would take no time. Each process trains a model of its own with torch.optim.SGD, which the others have on servers or on each worker."""
import pytorch_step

args = pytorch_step.arguments(__doc__)

pytorch_step.measure(pytorch_step.step_of(pytorch_step.new_model(), args), args.steps, args.warmup, lambda: None)
