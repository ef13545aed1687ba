"""A job of TensorFlow's ParameterServerStrategy, for the programs of peers.py: with --task=ps:N or worker:N a server that runs until
it is killed, and with --task=chief:0 the program that hands steps to the workers."""
import argparse
import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import tensorflow as tf  # noqa: E402, after the variables that it reads


def arguments(description, texts, integers):
    """The arguments, `cluster` among them as a ClusterSpec."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--cluster", type=lambda text: tf.train.ClusterSpec(json.loads(text)), required=True)
    for name in ["task", *texts]:
        parser.add_argument(f"--{name}", required=True)
    for name in ["steps", "warmup", "steps_a_call", *integers]:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    return parser.parse_args()


def serve(cluster, job, index):
    config = tf.compat.v1.ConfigProto()
    config.intra_op_parallelism_threads = 1
    # These threads start operations and wait for others; TensorFlow's guide asks for more threads than workers.
    config.inter_op_parallelism_threads = cluster.num_tasks("worker") + 1
    tf.distribute.Server(cluster, job_name=job, task_index=index, config=config, protocol="grpc").join()


def run(args, lead):
    """On the chief calls lead(strategy, coordinator)."""
    job, index = args.task.split(":")
    if job != "chief":
        return serve(args.cluster, job, int(index))
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.SimpleClusterResolver(
        args.cluster, task_type="chief", task_id=0, rpc_layer="grpc"))
    lead(strategy, tf.distribute.coordinator.ClusterCoordinator(strategy))
