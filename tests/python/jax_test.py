#!/usr/bin/python3
"""weir.jax: pytrees as the tensors of a job, and a loop that trains what a serial loop in JAX trains, to the bit in sync."""
import collections
import re
import sys
import unittest

import support

support.run_with("WEIR_JAX_PYTHON")
import jax  # pylint: disable=wrong-import-position
import jax.numpy as jnp  # pylint: disable=wrong-import-position
import numpy as np  # pylint: disable=wrong-import-position
import weir.jax  # pylint: disable=wrong-import-position

sys.path.insert(0, str(support.ROOT / "tests/structure"))
import page_blocks  # pylint: disable=wrong-import-position

EXAMPLES, INPUTS, BATCH, PARTS, EPOCHS, SEED = 96, 6, 8, 3, 4, 9
RATE, MOMENTUM = 0.05, 0.9
Point = collections.namedtuple("Point", "x y")


def job(**more):
    fields = {"seed": SEED, "data": {"batch_size": BATCH}, "train": {"epochs": EPOCHS},
              "consistency": {"mode": "sync", "parts": PARTS}, "server": {"min_shard_kib": 0},
              "optimizer": {"type": "momentum", "learning_rate": RATE, "momentum": MOMENTUM}}
    return {**fields, **more}


def examples():
    random = np.random.default_rng(5)
    x = random.normal(size=(EXAMPLES, INPUTS)).astype(np.float32)
    return x, (x @ np.arange(INPUTS) > 1).astype(np.float32)


def make_params():
    random = np.random.default_rng(11)

    def layer(m, n):
        return {"weight": jnp.asarray(random.normal(size=(m, n)), jnp.float32) * 0.3, "bias": jnp.zeros(n)}
    return {"layers": [layer(INPUTS, 16), layer(16, 1)], "scale": jnp.float32(1)}


@jax.jit
@jax.value_and_grad
def loss_and_gradient(params, x, y):
    first, second = params["layers"]
    p = (jnp.tanh(x @ first["weight"] + first["bias"]) @ second["weight"] + second["bias"])[:, 0] * params["scale"]
    return jnp.mean(jnp.logaddexp(0, p) - y * p)


def train(**options):
    """The trained tree, the losses, and how often each example came."""
    x, y = examples()
    losses, seen = [], np.zeros(EXAMPLES, int)
    with weir.jax.Trainer(job(**options.pop("fields", {})), make_params(), EXAMPLES, **options) as trainer:
        for step in trainer.steps():
            loss, gradient = loss_and_gradient(step.params, x[step.examples], y[step.examples])
            step.push(gradient, loss=loss)
            losses.append(float(loss))
            np.add.at(seen, step.examples, 1)
    return trainer.params, losses, seen


class Trees(unittest.TestCase):
    def test_names_are_paths(self):
        tree = {"b": [jnp.ones((2, 3)), (jnp.zeros(4),)], "a": Point(np.float32(5), {"z": np.full(1, 6, np.float32)}), "none": None}
        arrays = weir.jax.flatten(tree)
        self.assertEqual([(name, a.shape) for name, a in arrays.items()],
                         [("a.x", ()), ("a.y.z", (1,)), ("b.0", (2, 3)), ("b.1.0", (4,))])
        back = weir.jax.unflatten(tree, {name: a + 1 for name, a in arrays.items()})
        self.assertEqual(jax.tree_util.tree_structure(back), jax.tree_util.tree_structure(tree))
        self.assertIsInstance(back["a"].x, jax.Array)
        jax.tree_util.tree_map(lambda new, old: np.testing.assert_array_equal(new, old + 1), back, tree)

    def test_no_copy_of_what_the_host_has(self):
        leaf = jnp.arange(1000.0)
        self.assertEqual(weir.jax.flatten([leaf])["0"].ctypes.data, leaf.unsafe_buffer_pointer())

    def test_what_cannot_be_trained(self):
        for tree, text in (({"w": jnp.ones(2, jnp.bfloat16)}, "w must be a float32 array, got bfloat16"),
                           ({"n": {"steps": jnp.int32(0)}}, "n.steps must be a float32 array, got int32"),
                           ([1.5], "0 must be a float32 array, got float"),
                           ({"a": {"b": jnp.ones(1)}, "a.b": jnp.ones(1)}, "two leaves of the tree have the name a.b")):
            with self.subTest(text), self.assertRaisesRegex(weir.ConfigError, re.escape(text)):
                weir.jax.flatten(tree)

    def test_arrays_of_another_tree(self):
        tree, one = {"w": jnp.ones(2), "b": jnp.ones(1)}, np.ones(1, np.float32)
        for arrays, text in (({"w": np.ones(2, np.float32)}, "b: the tree has shape (1,), the arrays have nothing"),
                             ({"w": one, "b": one}, "w: the tree has shape (2,), the arrays have shape (1,)"),
                             ({**weir.jax.flatten(tree), "c": one}, "c: the tree has nothing, the arrays have shape (1,)")):
            with self.subTest(text), self.assertRaisesRegex(weir.ConfigError, re.escape(text)):
                weir.jax.unflatten(tree, arrays)


class Training(unittest.TestCase):
    def test_sync_has_the_bits_of_a_serial_loop(self):
        (x, y), order, params = examples(), weir.ExampleOrder(EXAMPLES, SEED), make_params()
        weights = {name: a.copy() for name, a in weir.jax.flatten(params).items()}
        speeds = {name: np.zeros_like(a) for name, a in weights.items()}
        rate, momentum, share = np.float32(RATE), np.float32(MOMENTUM), np.float32(1) / np.float32(PARTS)
        for step in range(EPOCHS * EXAMPLES // (BATCH * PARTS)):
            mean = None
            for part in range(PARTS):
                indices = order((step * PARTS + part) * BATCH, BATCH)
                _, gradient = loss_and_gradient(weir.jax.unflatten(params, weights), x[indices], y[indices])
                terms = {name: share * g for name, g in weir.jax.flatten(gradient).items()}
                mean = terms if mean is None else {name: mean[name] + g for name, g in terms.items()}
            for name in weights:
                speeds[name] = momentum * speeds[name] + mean[name]
                weights[name] -= rate * speeds[name]
        for servers in (1, 2):
            trained, _, _ = train(servers=servers)
            for name, array in weir.jax.flatten(trained).items():
                np.testing.assert_array_equal(array, weights[name], f"{name}, {servers} servers")

    def test_local_steps(self):
        """Plain steps of the program's own, to whose mean the servers go; with the bits of a serial loop."""
        def descend(params, indices):
            gradient = loss_and_gradient(params, x[indices], y[indices])[1]
            return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, gradient)

        (x, y), order, params, local = examples(), weir.ExampleOrder(EXAMPLES, SEED), make_params(), 2
        fields = job(local={"steps": local}, optimizer={"type": "sgd", "learning_rate": 0.5}, train={"steps": 5})
        weights = {name: a.copy() for name, a in weir.jax.flatten(params).items()}
        share = np.float32(1) / np.float32(PARTS)
        for step in range(5):
            mean = {name: np.zeros_like(a) for name, a in weights.items()}
            for part in range(PARTS):
                own = weir.jax.unflatten(params, weights)
                for i in range(local):
                    own = descend(own, order(((step * PARTS + part) * local + i) * BATCH, BATCH))
                for name, a in weir.jax.flatten(own).items():
                    mean[name] += share * (weights[name] - a)
            for name, a in mean.items():
                weights[name] -= np.float32(0.5) * a
        keys = []
        with weir.jax.Trainer(fields, params, EXAMPLES, servers=2) as trainer:
            for step in trainer.steps():
                own = step.params
                for batch in step.batches:
                    own = descend(own, batch.examples)
                    keys.append(jax.random.uniform(batch.key).item())
                with self.assertRaisesRegex(weir.ConfigError, "local.steps is 2"):
                    step.push(own)
                step.push_result(own)
        self.assertEqual(len(set(keys)), 5 * PARTS * local)
        for name, array in weir.jax.flatten(trainer.params).items():
            np.testing.assert_array_equal(array, weights[name], name)

    def test_the_program_of_the_page(self):
        """That of docs/python.md trains what the loop above trains."""
        program = page_blocks.block_with(support.ROOT, "docs/python.md", "weir.jax.Trainer(").text
        x, y = examples()
        names = {"weir": weir, "params": make_params(), "loss_and_gradient": loss_and_gradient, "x": x, "y": y}
        with support.folder() as folder:
            program = program.replace('"job.json"', repr(support.write_job(f"{folder}/job.json", **job())))
            exec(compile(program, "docs/python.md", "exec"), names)  # pylint: disable=exec-used
        for name, array in weir.jax.flatten(train()[0]).items():
            np.testing.assert_array_equal(weir.jax.flatten(names["params"])[name], array, name)

    def test_each_mode(self):
        for mode in ({"mode": "sync", "parts": 2}, {"mode": "bounded", "staleness": 1}, {"mode": "async"}):
            with self.subTest(mode):
                _, losses, seen = train(fields={"consistency": mode, "optimizer": {"type": "adam", "learning_rate": 0.05}})
                self.assertEqual(set(seen), {EPOCHS})
                self.assertLess(np.mean(losses[-10:]), 0.7 * np.mean(losses[:10]))

    def test_weights_of_a_step_stay(self):
        """The loop uses its memory again; the trees that it gave out must not notice."""
        x, y = examples()
        kept = []
        with weir.jax.Trainer(job(), make_params(), EXAMPLES) as trainer:
            for step in trainer.steps():
                kept.append((step.params, [np.array(a) for a in weir.jax.flatten(step.params).values()]))
                step.push(loss_and_gradient(step.params, x[step.examples], y[step.examples])[1])
        self.assertGreater(len(kept), 10)
        for params, copies in kept:
            for array, copy in zip(weir.jax.flatten(params).values(), copies):
                np.testing.assert_array_equal(array, copy)

    def test_weights_in_a_mean(self):
        fields = job(train={"steps": 1}, consistency={"mode": "sync", "parts": 2}, optimizer={"type": "sgd", "learning_rate": 1})
        with weir.jax.Trainer(fields, {"w": jnp.zeros(2)}, EXAMPLES) as trainer:
            for n, step in enumerate(trainer.steps()):
                step.push({"w": jnp.full(2, 4.0 * (n + 1))}, weight=jnp.float32(0.25 + 0.5 * n))
        np.testing.assert_array_equal(trainer.params["w"], [-7, -7])

    def test_random_numbers(self):
        """Of the job's seed and the batch alone, in every mode."""
        runs = []
        for mode in ("sync", "async"):
            drawn = {}
            with weir.jax.Trainer(job(consistency={"mode": mode}), make_params(), EXAMPLES) as trainer:
                for step in trainer.steps():
                    drawn[step.work.batch] = jax.random.uniform(step.key).item(), np.random.default_rng(step.seed).random(), np.random.rand()
                    step.push(jax.tree_util.tree_map(jnp.zeros_like, step.params))
            runs.append(drawn)
        self.assertEqual(*runs)
        numbers = np.ravel(list(runs[0].values()))
        self.assertEqual(len(np.unique(numbers)), 3 * EPOCHS * EXAMPLES // BATCH)

    def test_snapshot(self):
        x, y = examples()
        with weir.jax.Trainer(job(), make_params(), EXAMPLES) as trainer:
            for step in trainer.steps():
                if step.work.part == 0:  # of this step nothing is applied yet
                    jax.tree_util.tree_map(np.testing.assert_array_equal, trainer.snapshot(), step.params)
                step.push(loss_and_gradient(step.params, x[step.examples], y[step.examples])[1])

    def test_another_tree_as_gradient(self):
        with self.assertRaisesRegex(weir.ConfigError, "push: layers.0.bias must be an array, got NoneType"), \
                weir.jax.Trainer(job(), make_params(), EXAMPLES) as trainer:
            for step in trainer.steps():
                step.push({"scale": jnp.float32(0)})

    def test_leaving_early(self):
        with weir.jax.Trainer(job(), make_params(), EXAMPLES) as trainer:
            for step in trainer.steps():
                break
        with self.assertRaisesRegex(weir.ConfigError, "closed"):
            trainer.client.next_work()
        with self.assertRaises(ZeroDivisionError), weir.jax.Trainer(job(), make_params(), EXAMPLES) as trainer:
            for step in trainer.steps():
                step.push(make_params(), loss=1 / 0)

    def test_arrays_in_the_clients_calls(self):
        """A gradient is sent from where it is; nothing is read into JAX's arrays, which never change."""
        trained = {"w": np.empty(5, np.float32)}
        with weir.Client(job(optimizer={"type": "sgd", "learning_rate": 1}), {"w": (5,)}, EXAMPLES) as client:
            for step in client.steps(trained):
                with self.assertRaisesRegex(weir.ConfigError, "pull: w .* read-only"):
                    client.pull(step.work.clock, {"w": jnp.zeros(5)})
                step.push({"w": jnp.ones(5)})
        np.testing.assert_allclose(trained["w"], -EPOCHS * EXAMPLES / (BATCH * PARTS), rtol=1e-6)


class Example(unittest.TestCase):
    def test_it_learns(self):
        program = support.ROOT / "examples/jax_mlp.py"

        def accuracies(command):
            done = support.run(list(map(str, command)))
            self.assertEqual(done.returncode, 0, done.stderr)
            return [float(n) for n in re.findall("test accuracy: ([0-9.]+)", done.stdout + done.stderr)]

        (alone,) = accuracies([support.PYTHON, program])
        self.assertGreater(alone, 0.9)
        found = accuracies(support.up(program.with_suffix(".json"), [program], "--ps=2", "--workers=2", "--verbose"))
        self.assertEqual(found, [alone] * 2)


if __name__ == "__main__":
    unittest.main()
