"""MXNet's distributed key-value store (dist_async, dist_sync), for peers.py. The environment says which process this is (DMLC_ROLE):
scheduler and servers run inside `import mxnet` until the workers are done.
"""
import argparse
import json
import sys
import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

HIDDEN, CLASSES, INPUTS = 128, 10, 784

parser = argparse.ArgumentParser(description=__doc__)
for name in ["mode", "data"]:
    parser.add_argument(f"--{name}", required=True)
for name in ["steps", "warmup", "batch"]:
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("--rate", type=float, required=True)
args = parser.parse_args()


def batches(seed):
    """Images and labels of one batch after another, in random order, without end."""
    images = np.fromfile(f"{args.data}/images", dtype=np.uint8).reshape(-1, INPUTS).astype(np.float32) / 255
    labels = np.fromfile(f"{args.data}/labels", dtype=np.uint8).astype(np.float32)
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(labels))
        for first in range(0, len(order) - args.batch + 1, args.batch):
            indexes = order[first:first + args.batch]
            yield mx.nd.array(images[indexes]), mx.nd.array(labels[indexes])


store = mx.kv.create(f"dist_{args.mode}")
mx.random.seed(1)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(HIDDEN, activation="relu", in_units=INPUTS), gluon.nn.Dense(CLASSES, in_units=HIDDEN))
net.initialize(mx.init.Xavier())
net.hybridize(static_alloc=True)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
loss_of.hybridize(static_alloc=True)
# In sync the servers add the workers' gradients up.
rate = args.rate / (store.num_workers if args.mode == "sync" else 1)
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": rate}, kvstore=store, update_on_kvstore=True)
data = batches(store.rank)


def step():
    images, labels = next(data)
    with autograd.record():
        loss = loss_of(net(images), labels)
    loss.backward()
    trainer.step(args.batch)
    return loss


for _ in range(args.warmup):
    step()
mx.nd.waitall()
store._barrier()  # gluon has no public one
start = time.monotonic()
for _ in range(args.steps):
    last = step()
mx.nd.waitall()
print(json.dumps({"steps": args.steps, "seconds": time.monotonic() - start, "loss": float(last.mean().asscalar())}), flush=True)
sys.exit(0)
