#!/usr/bin/python3
"""libweir.so beside other packages with libraries of their own, gRPC's and protobuf's among them, in one process: imported in any
order, each goes on working. Besides the packages of jax_requirements.txt it takes PyTorch and TensorFlow, if WEIR_JAX_PYTHON
has them."""
import importlib.util
import random
import textwrap
import unittest

import support

support.run_with("WEIR_JAX_PYTHON")

# What each package does in the process, again and again.
USES = {
    "weir": """
        import weir
        with weir.Client({"data": {"batch_size": 4}}, {"w": (3,)}, 16, servers=2) as client:
            for step in client.steps():
                step.gradient.flat[:] = 1
                step.push()
    """,
    "grpc": """
        import grpc
        from concurrent import futures
        server = grpc.server(futures.ThreadPoolExecutor(1))
        echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Echo": echo}),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert channel.unary_unary("/test.Echo/Echo")(b"hello", timeout=60) == b"hello"
        server.stop(None).wait()
    """,
    "google.protobuf": """
        from google.protobuf import descriptor_pb2, struct_pb2
        message = struct_pb2.Struct()
        message.update({"a": [1, 2, {"b": "c"}]})
        assert struct_pb2.Struct.FromString(message.SerializeToString()) == message
    """,
    "jax": """
        import jax
        assert float(jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((64, 64)))) == 64.0**3
    """,
    "torch": """
        import torch
        assert float((torch.ones(64, 64) @ torch.ones(64, 64)).sum()) == 64.0**3
    """,
    "tensorflow": """
        import tensorflow as tf
        assert float(tf.reduce_sum(tf.matmul(tf.ones((64, 64)), tf.ones((64, 64))))) == 64.0**3
    """,
}


class Imports(unittest.TestCase):
    def works(self, order):
        """Each package of the order is imported and used, and then each is used again."""
        with self.subTest(order=order):
            print("order:", *order, flush=True)
            done = support.run([support.PYTHON, "-c", "".join(textwrap.dedent(USES[name]) for name in [*order, *order])])
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_any_order(self):
        others = [name for name in USES if name != "weir" and importlib.util.find_spec(name) is not None]
        self.assertLessEqual({"grpc", "google.protobuf", "jax"}, set(others))
        for name in others:
            self.works(["weir", name])
            self.works([name, "weir"])
        shuffle = random.Random(1).shuffle
        for _ in range(4):
            order = ["weir", *others]
            shuffle(order)
            self.works(order)


if __name__ == "__main__":
    unittest.main()
