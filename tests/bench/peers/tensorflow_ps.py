"""TensorFlow's ParameterServerStrategy, for peers.py: a training step on images. Updates are applied as they come.

Each server has half of the first layer's weights, which are nearly all, and some of the rest.
"""
import json
import time

import tensorflow_cluster
from tensorflow_cluster import tf

INPUTS, HIDDEN, CLASSES = 784, 128, 10

args = tensorflow_cluster.arguments(__doc__, ["data"], ["batch"])


def batches():
    """On each worker: images and labels of one batch after another, in random order, without end."""
    def decode(images, labels):
        images = tf.reshape(tf.io.decode_raw(images, tf.uint8), [args.batch, INPUTS])
        return tf.cast(images, tf.float32) / 255, tf.cast(tf.reshape(tf.io.decode_raw(labels, tf.uint8), [args.batch]), tf.int32)

    examples = tf.data.Dataset.zip((tf.data.FixedLengthRecordDataset(f"{args.data}/images", INPUTS),
                                    tf.data.FixedLengthRecordDataset(f"{args.data}/labels", 1)))
    return examples.cache().shuffle(10000).repeat().batch(args.batch, drop_remainder=True).map(decode).prefetch(2)


def lead(strategy, coordinator):
    half = INPUTS // 2
    with strategy.scope():
        random = tf.random.Generator.from_seed(1)
        upper = tf.Variable(random.normal([half, HIDDEN], stddev=(2 / INPUTS) ** 0.5))
        lower = tf.Variable(random.normal([INPUTS - half, HIDDEN], stddev=(2 / INPUTS) ** 0.5))
        bias = tf.Variable(tf.zeros([HIDDEN]))
        out = tf.Variable(random.normal([HIDDEN, CLASSES], stddev=(2 / HIDDEN) ** 0.5))
        out_bias = tf.Variable(tf.zeros([CLASSES]))
    variables = [upper, lower, bias, out, out_bias]

    def step(images, labels):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(images @ tf.concat([upper, lower], 0) + bias)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden @ out + out_bias))
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(args.rate * gradient)
        return loss

    @tf.function
    def call(iterator):
        loss = 0.0
        for _ in tf.range(args.steps_a_call):
            loss = strategy.run(step, args=next(iterator))
        return loss

    data = iter(coordinator.create_per_worker_dataset(batches))

    def run(steps):
        losses = [coordinator.schedule(call, args=(data,)) for _ in range(steps * args.cluster.num_tasks("worker") // args.steps_a_call)]
        coordinator.join()
        return losses[-1].fetch(), len(losses) * args.steps_a_call

    run(args.warmup)
    start = time.monotonic()
    loss, steps = run(args.steps)
    print(json.dumps({"steps": steps, "seconds": time.monotonic() - start, "loss": float(loss)}), flush=True)


tensorflow_cluster.run(args, lead)
