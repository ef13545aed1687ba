"""Rows of an embedding table on TensorFlow's ParameterServerStrategy, for peers.py.

Server s has the rows of the keys k with k mod servers = s. A step reads the rows of a batch to all places of their keys, and adds the
updates of row-wise Adagrad, for gradients summed by key, to the rows. The different keys of each batch were found before.
"""
import json
import time

import tensorflow_cluster
from row_batches import zipf_batches
from tensorflow_cluster import tf

args = tensorflow_cluster.arguments(__doc__, [], ["rows", "dim", "keys"])
servers = args.cluster.num_tasks("ps")


def batches():
    """On each worker, without end: by server the rows of a batch, and for each of its keys its place among all of them."""
    def cut(keys):
        parts, places, before = [], tf.zeros_like(keys), tf.constant(0, tf.int64)
        for server in range(servers):
            where = tf.where(keys % servers == server)
            rows, place = tf.unique(tf.gather(keys, where[:, 0]) // servers, tf.int64)
            places = tf.tensor_scatter_nd_update(places, where, place + before)
            before += tf.size(rows, tf.int64)
            parts.append(rows)
        return (*parts, places)

    keys = tf.constant(zipf_batches(args.rows, args.keys, 1))
    return tf.data.Dataset.from_tensor_slices(keys).map(cut).cache().repeat().prefetch(2)


def lead(strategy, coordinator):
    own = -(-args.rows // servers)
    with strategy.scope():
        # The strategy puts variables on the servers in turns.
        values = [tf.Variable(tf.fill([own, args.dim], 0.01)) for _ in range(servers)]
        squares = [tf.Variable(tf.zeros([own])) for _ in range(servers)]

    def step(*batch):
        parts, places = batch[:-1], batch[-1]
        read = tf.gather(tf.concat([tf.gather(table, rows) for table, rows in zip(values, parts)], 0), places)
        # The values that were read serve as the gradient: nothing is computed.
        sizes = [tf.size(rows) for rows in parts]
        sums = tf.split(tf.math.unsorted_segment_sum(read, places, tf.add_n(sizes)), tf.stack(sizes), num=servers)
        for table, square, rows, gradients in zip(values, squares, parts, sums):
            square.scatter_add(tf.IndexedSlices(tf.reduce_mean(tf.square(gradients), 1), rows))
            rate = args.rate / (tf.sqrt(tf.gather(square, rows)) + 1e-10)
            table.scatter_sub(tf.IndexedSlices(gradients * rate[:, None], rows))

    @tf.function
    def call(iterator):
        for _ in tf.range(args.steps_a_call):
            strategy.run(step, args=next(iterator))

    data = iter(coordinator.create_per_worker_dataset(batches))

    def run(steps):
        calls = max(1, steps * args.cluster.num_tasks("worker") // args.steps_a_call)
        for _ in range(calls):
            coordinator.schedule(call, args=(data,))
        coordinator.join()
        return calls * args.steps_a_call

    run(args.warmup)
    start = time.monotonic()
    steps = run(args.steps)
    print(json.dumps({"steps": steps, "seconds": time.monotonic() - start}), flush=True)


tensorflow_cluster.run(args, lead)
