"""The optimizer: the training loop of a PyTorch model as a worker."""
from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import platform
import warnings
from typing import Any, Callable, Generator, Iterator, Mapping, NoReturn, Sequence, TypeVar

import numpy as np
import torch
import torch.utils.data

from .._ending import Interrupts
from ..client import Client
from ..errors import ConfigError, Error
from ..exchange import Work
from ..fingerprints import EXAMPLES, in_cluster
from ..job import ExampleOrder, Job, batch_seed
from ..metrics import number_of
from ..steps import Step, loss_of, run
from ..tables import Tables
from .batches import Batches
from .buffers import BufferRules
from .changes import Changes
from .config import JobFields
from .embedding import KeptRows, KeysOfTables, TableRows, as_arrays
from .evaluation import EvaluateModel, of_values
from .gradients import Gradients
from .local import LocalSteps
from .loops import SEVERAL_LOSSES, Begins, Epoch, Loader, Loop, epochs_of, refuse_keywords
from .samplers import Arrangement, BatchSampler, Sampler
from .streams import StreamBatches, batches_of
from .weights import ModelWeights
from .whole_job import SmallBatchCheck, WholeJob, count_examples, is_stream

# Keywords of torch's optimizers, and the field of the job's config that says the same.
_FIELDS = {
    "lr": "optimizer.learning_rate", "momentum": "optimizer.momentum", "nesterov": "optimizer.type: \"nesterov\"",
    "alpha": "optimizer.decay", "betas": "optimizer.beta1 and optimizer.beta2", "eps": "optimizer.epsilon",
    "weight_decay": "optimizer.weight_decay (decoupled) or optimizer.l2 (as SGD and Adam of torch)", "amsgrad": "optimizer.amsgrad"
}

T = TypeVar("T")

_LEFT = ("its loop over loader() ended before the job was done (an exception, or break); for a shorter job set train.epochs or "
         "train.examples")


class Optimizer(torch.optim.Optimizer):
    """Trains a model as a worker of a job.

    model: its parameters that require a gradient are trained, on the CPU or on one GPU. bfloat16 ones are rounded from the
        float32 values that the servers have. The running statistics of BatchNorm go with them: each batch begins with those of
        the job. A step of sync makes them the mean of what its parts have left; otherwise they are those of the newest
        push. Other parameters and buffers stay this process's own. Its modules weir.torch.EmbeddingBag and Embedding look
        rows up in the job's tables, which are trained, too.
    job: the job's config: a path, a mapping, or what weir.torch.job() makes. Its optimizer and schedule run on the servers; data.batch_size is the
        size of the loader's batches. It has no `model` and no other field of `data`.
    train_set: a map-style data set, the same for every worker: in a cluster a few of its examples are made twice when the
        loop begins, and join() compares them with those of the other workers. Or an IterableDataset, whose length is its __len__ or else
        train.examples of the job. In sync each part of a step is the next batch of the part's own shard, train_set.shard(num_shards=,
        index=). In bounded and async each batch is the next one of this process's own passes over it, or over the worker's
        shard, so that examples do not count exactly once.
    buffers: which buffers and frozen parameters are the job's, {glob: "job" or "own"}; the first glob that fits a name counts.
        "own": this process has values of its own, which the program may change. By default the job has those of BatchNorm, and
        each of floats that is in the model's state_dict(), finite, and of at most 65,536 values. The others are constants; the
        loop raises where one changes.
    overlap: gradients travel during backward, each as soon as it is made. Then a batch has one backward() (others go
        within accumulate()), and nothing may change a gradient after it; step() raises if something did, for example
        clip_grad_norm_(): use train.clip_norm or clip_value of the job. A change through `.data` goes unnoticed, and is not sent.
    evaluate: f(model) -> {"loss": ...}, with "accuracy", "auc" and "examples" if there are such. The loop calls it between two batches, when
        the job asks this worker for the evaluation of an epoch's end (evaluation.every_epochs), and at the job's end. The model has the
        weights to evaluate then, is in eval mode, and makes no gradients; afterwards all is as it was. Rows of tables are those of
        loader(final_keys=...), of the same version, or without it the newest ones.
    test: the same for the job's end alone, on examples that evaluate does not have; evaluate is for validation then.
    inner: one of torch's optimizers, of the same parameters, for a job with local.steps: step() takes its step on the model, and the
        last one of a round pushes what the round has taken away from the weights. The job's `optimizer` is the outer rule, on the
        servers. Each round begins with the state that inner had at first, or with local.keep_state of the job with that of this worker's
        round before.
    servers: without a cluster, how many to start in this process.
    cluster, task, token_file, history, log_level, overrides, progress, code_version: as of weir.Client. Under `weir up` or with TF_CONFIG this
        process is a worker of the cluster.

    Initial values: the model's own, unless the job has checkpoint.init_from or checkpoints to continue from. In a cluster
    they are those of one worker, which uploads them before the first step.
    """

    def __init__(self, model: torch.nn.Module, job: str | os.PathLike[str] | Mapping[str, Any], train_set: Any, *,
                 overlap: bool = False, servers: int = 1, cluster: str | None = None, task: str | None = None,
                 token_file: str | None = None, history: str | None = None, log_level: str | None = None,
                 overrides: Sequence[str] = (), progress: bool | None = None, buffers: BufferRules | None = None,
                 code_version: str | None = None, evaluate: EvaluateModel | None = None, test: EvaluateModel | None = None,
                 inner: torch.optim.Optimizer | None = None, **refused: NoReturn):
        for name in refused:
            where = _FIELDS.get(name)
            raise TypeError(f"weir.torch.Optimizer() takes no {name}: the rule runs on the servers, and the job's config has its "
                            f"settings in `optimizer`{'' if where is None else f'; this one is {where}'}")
        self._weights = ModelWeights(model, buffers)
        self._place = self._weights.place
        if isinstance(train_set, (str, os.PathLike, Mapping, Job)):
            raise ConfigError(f"train_set must be a data set, got {type(train_set).__name__}; the order is "
                              "weir.torch.Optimizer(model, job, train_set)")
        if isinstance(job, JobFields):
            job.check(self._weights.parameters)
        #: The job's config (weir.Job).
        self.job = Job(job, overrides)
        self._tables = Tables(self.job)
        self._rows = TableRows(model, self._tables)
        self._local = None if inner is None else LocalSteps(inner, self._weights, self.job)
        self._check_local(overlap)
        self._train_set = train_set
        self._examples = count_examples(train_set, self.job)
        self._arguments: dict[str, Any] = dict(servers=servers, cluster=cluster, task=task, token_file=token_file, history=history,
                               log_level=log_level, progress=progress, code_version=code_version)
        # The last two are functions of the first.
        self._model, self._evaluate, self._test = model, evaluate, test
        self._one_loop = Loop(self._weights.parameters.values(), cluster, task)
        self._client: Client | None = None
        self._overlap = overlap
        self._gradients: Gradients | None = None
        self._changes: Changes | None = None
        self._step: Step | None = None
        # The batch at hand, and whether step() was called for it.
        self._work: Work | None = None
        self._stepped = False
        self._begun = False
        # Whether the step's batch is that of an epoch which has yet to begin.
        self._between = False
        # The rows of loader(final_keys=...), if it has that.
        self._kept: KeptRows | None = None
        self._rank: int | None = None
        self._epoch: int | None = None
        self._whole = WholeJob(self.job, self._examples, cluster, task)
        # Of the job: shown, and held against LR schedulers.
        self._lr = float(self.job.config["optimizer"]["learning_rate"])
        super().__init__(list(self._weights.parameters.values()), {"lr": self._lr})

    def _check_local(self, overlap: bool) -> None:
        steps = self.job.get("local.steps", 1)
        if self._local is None and steps > 1:
            raise ConfigError(f"inner is missing: local.steps is {steps}, so that the worker takes steps of its own; give "
                              "weir.torch.Optimizer inner=torch.optim.AdamW(model.parameters()), or another optimizer of torch")
        if self._local is not None and overlap:
            raise ConfigError("overlap=True cannot be given with inner, whose steps need all gradients of a batch before any of it may travel; "
                              "leave it out")

    # ---- the loop

    def loader(self, *, num_workers: int = 0, collate_fn: Callable[[list[Any]], Any] | None = None,
               pin_memory: bool = False, prefetch_factor: int = 2, worker_init_fn: Callable[[int], None] | None = None,
               multiprocessing_context: Any = None, final_keys: KeysOfTables | None = None,
               prefetch_keys: Callable[[Any], KeysOfTables] | None = None, sampler: Sampler | None = None,
               batch_sampler: BatchSampler | None = None, window: int | None = None, **refused: Any) -> Loader:
        """Yields the batches that this worker has to compute, until the job is done; call step() once for each.

        A batch has data.batch_size examples (the job's last one may have fewer). Each example comes once in an epoch, in
        an order that follows from the job's seed; after a restart the job continues where it was. With a batch come its
        weights: they are in the model when the batch is yielded; with local.steps they come with the first batch of so many, a
        round. When the loop has ended the model has the trained weights.

        The global random numbers of torch, NumPy and Python's `random` are seeded for each batch, from the job's seed and
        the batch alone: when its examples are made, also in the loader's processes, and again when it is yielded. So dropout and
        augmentations do not depend on which worker computes a batch, and differ from batch to batch.

        num_workers, collate_fn, pin_memory, prefetch_factor, worker_init_fn, multiprocessing_context: as of DataLoader;
            batches are pinned where they are made ahead, by num_workers.
        final_keys: {"table": keys}, int64 of any shape, whose trained rows the model's modules have when the loop has ended.
        prefetch_keys: returns the keys of a batch, {"table": keys}. The batch that probably comes next is then made before this
            one is yielded, and its rows travel while this one is computed (weir.Step.prefetch_rows()).
        sampler, batch_sampler: one function that arranges examples into batches, for example by length. It gets the indices of the
            examples of `window` batches (by default 50) of one epoch, in the job's order, and returns the same ones: `sampler` in its
            order, `batch_sampler` in batches of data.batch_size. On every worker it must return the same; the global random numbers are
            seeded for it.
        """
        refuse_keywords(refused, "loader()")
        if self._begun:
            raise Error("loader() or epochs() was called already; one loop trains the whole job, all its epochs")
        self._weights.check()
        if self._local is not None:
            self._local.check()
        kept = KeptRows(final_keys or {}, self._tables)
        arrangement = Arrangement(sampler, batch_sampler, window)
        if arrangement.name is not None and is_stream(self._train_set):
            raise ConfigError(f"{arrangement.name} cannot be given with an IterableDataset, which has no indices")
        self._begun = True
        self._kept = None if final_keys is None else kept
        options: dict[str, Any] = {}
        if num_workers > 0:
            options = dict(pin_memory=pin_memory, prefetch_factor=prefetch_factor, worker_init_fn=worker_init_fn,
                           multiprocessing_context=multiprocessing_context)
        elif pin_memory:
            raise ConfigError("pin_memory=True needs num_workers, whose batches are pinned where they are made; give both or neither")
        return Loader(self._loop(num_workers, collate_fn, options, kept, prefetch_keys, arrangement), self._whole)

    def epochs(self, **options: Any) -> Generator[Epoch, None, None]:
        """The same loop in two, with the same bits: `for epoch in opt.epochs(): for x, y in epoch:`. epoch.number counts from 0.

        A batch belongs to the epoch of its first example, so the last one of an epoch may have examples of the next. An epoch in which
        no batch of this worker begins is left out. A batch of an earlier epoch (a worker died, or the job went back to a
        checkpoint) comes in the one that is under way. Between two epochs the model has the weights of the next batch.
        Error: the inner loop was left, and the outer one goes on.

        options: the arguments of loader().
        """
        known = inspect.signature(self.loader).parameters
        refuse_keywords([name for name in options if name not in known], "epochs()")
        return epochs_of(self.loader(**options))

    def _loop(self, num_workers: int, collate_fn: Any, options: Mapping[str, Any], kept: KeptRows,
              prefetch_keys: Callable[[Any], KeysOfTables] | None, arrangement: Arrangement) -> Generator[Any, None, None]:
        self._one_loop.begin()
        job, examples = self.job, self._train_set
        batch, seed = self._whole.batch, int(job.config["seed"])
        # Before the client: a fork would share its connections.
        batches: Batches | StreamBatches
        if is_stream(examples):
            batches = batches_of(examples, self._whole, num_workers, collate_fn, seed, _seed_of_task(seed, self._arguments["task"]), **options)
        else:
            order = arrangement.of(ExampleOrder(self._examples, seed), self._examples, batch, seed)
            compared = min(EXAMPLES, self._examples) if in_cluster(self._arguments["cluster"]) else 0
            batches = Batches(examples, order, batch, self._whole.likely_parts, num_workers, collate_fn, seed, compared,
                              self._whole.local_steps, **options)
        evaluate, test = (of_values(of, self._model, self._weights, self._kept_rows) for of in (self._evaluate, self._test))
        self._client = client = Client(job, self._weights.tensors(), self._examples, fingerprints=batches.fingerprints,
                                       evaluate=evaluate, test=test, **self._arguments)
        with Interrupts() as interrupts:
            yield from self._steps(client, batches, kept, prefetch_keys, interrupts)

    def _steps(self, client: Client, batches: Batches | StreamBatches, kept: KeptRows,
               prefetch_keys: Callable[[Any], KeysOfTables] | None, interrupts: Interrupts) -> Iterator[Any]:
        final = client.model.split(np.empty(client.model.elements, dtype=np.float32))
        self._gradients = gradients = Gradients(self._weights, self._overlap)
        self._changes = changes = Changes(self._weights, self._local is not None)
        small: SmallBatchCheck | None = None
        self._rows.bind()
        try:
            for step in run(client, final, kept.rows, recycles=True, seeds=False):
                self._weights.load(step.memory)
                changes.loaded(step.memory)
                if self._local is not None:
                    self._local.begin(step)
                # One, unless the worker takes steps of its own.
                for work in step.work.batches(self._whole.batch):
                    self._step, self._rank, epoch = step, client._rank, work.first_example // self._examples
                    self._work, self._stepped = work, False
                    if self._epoch is None or epoch > self._epoch:
                        self._between = True
                        yield Begins(epoch)
                        self._between = interrupts.seen = False
                        self._epoch = epoch
                    data = batches(work)
                    if prefetch_keys is not None and work.examples_left > work.examples:
                        step.prefetch_rows(as_arrays(prefetch_keys(batches.peek(work))))
                    if small is None:
                        small = SmallBatchCheck(self._weights.model, self._whole, work.examples)
                    self._place.seed(batch_seed(self._whole.seed, work.batch))
                    gradients.begin(step)
                    self._rows.begin(step)
                    yield data
                    small.remove()
                    interrupts.seen = False
                    self._step = self._work = None
                    self._rows.end()
                    if not self._stepped:
                        raise Error("step() was not called for the last batch; call it once for each batch of the loader. "
                                    "For larger batches raise data.batch_size; to leave early, break out of the loop")
                    if step.pushed:
                        changes.check_after()
                    batches.prepare(work)
            self._rank = client._rank
            self._weights.load(final)
            self._rows.keep(kept)
        except GeneratorExit:
            client.give_up(KeyboardInterrupt() if interrupts.seen else _LEFT)
            raise
        except BaseException as error:
            client.give_up(error)
            raise
        finally:
            self._step = self._work = self._gradients = self._changes = None
            self._between = False
            # The memory of weights that are still on their way to a GPU goes now.
            self._place.wait()
            if small is not None:
                small.remove()
            gradients.close()
            self._rows.end()
            self._client = None
            self._one_loop.end()
            client.close()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None, weight: Any = None) -> Any:
        """Sends the gradients of the batch to the servers; the next weights are in the model with the next batch. With `inner` it takes the
        step of that optimizer on the model instead, and sends what a round has changed when this was its last batch.

        loss: the batch's mean loss (a number or tensor), which `weir status` and the summary show; with a closure, its
        result. A parameter without a gradient counts as zeros. train.clip_value and clip_norm of the job apply.
        weight: in sync, the gradient's weight in the mean of its step, in place of the batch's examples, where the loss is the mean over
        something else: the labels that are not padding, say (weir.Step.push()). Not with overlap, where gradients travel before it is known.
            With `inner` a round's weight is the sum over its batches.
        """
        if weight is not None and self._overlap:
            raise ConfigError("step(weight=) is not for overlap=True, with which the gradients are on their way before step() is called; leave "
                              "one of them out")
        if closure is not None and not callable(closure):
            raise ConfigError(f"step() takes a closure first, as torch's optimizers do, got {type(closure).__name__}; give the loss "
                              "by its name: opt.step(loss=loss)")
        result = None
        if closure is not None and self._local is None:
            with torch.enable_grad():
                result = loss = closure()
        step, mean_loss = self._step, loss_of(loss)
        if self._between:
            raise Error("step() was called between two epochs, where there is no batch; call it in the inner loop, once for each batch")
        if step is None or self._gradients is None or self._changes is None:
            raise Error("step() was called outside the loop over loader(), which gives each batch its place in the job. If this program "
                        f"has another optimizer, whose loop it is: {SEVERAL_LOSSES}")
        if any(group["lr"] != self._lr for group in self.param_groups):
            raise ConfigError(f"the learning rate was changed here from {self._lr} to {self.param_groups[0]['lr']}, but it "
                              "is the servers' that counts; use optimizer.schedule of the job instead of a scheduler")
        if self._stepped:
            raise Error("step() was called already for this batch; call it once for each batch of the loader")
        self._changes.check()
        if self._local is not None:
            return self._step_locally(self._local, step, self._changes, closure, mean_loss, weight)
        missing = self._gradients.finish()
        self._changes.sent(step.gradient, missing)
        rows = self._rows.gradients()
        if not rows and not self._overlap and missing == len(self._weights.parameters):
            warnings.warn("step() sends zeros, since no parameter of the model has a gradient: was backward() called, and on a "
                          "loss of this model?", stacklevel=2)
        step.push(loss=mean_loss, rows=rows, weight=weight)
        self._stepped = True
        return result

    def _step_locally(self, local: LocalSteps, step: Step, changes: Changes, closure: Callable[[], Any] | None, mean_loss: float | None,
                      weight: Any) -> Any:
        assert self._work is not None
        heavy = None if weight is None else number_of(weight, "step: weight must be one number")
        if heavy is not None and not heavy > 0:
            raise ConfigError(f"step: weight must be above 0, and finite; got {weight}")
        result = local.take(closure)
        missing = sum(p.grad is None for p in self._weights.parameters.values())
        if missing == len(self._weights.parameters):
            warnings.warn("step() leaves the weights as they are, since no parameter of the model has a gradient: was backward() called, "
                          "and on a loss of this model?", stacklevel=3)
        local.took(self._work, mean_loss if closure is None else loss_of(result), heavy)
        if local.ends(self._work, step):
            local.finish(step)
            changes.sent(step.gradient, missing)
            local.push(step)
        self._stepped = True
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch.optim.Optimizer.zero_grad() of PyTorch 2, also on older ones; and for the rows of tables, whose gradients
        each batch begins without. set_to_none: the gradients become None; so backward makes them, instead of adding to zeros."""
        if set_to_none:
            for parameter in self._weights.parameters.values():
                parameter.grad = None
        else:
            super().zero_grad(set_to_none=False)
        self._rows.zero_grad()

    def accumulate(self) -> contextlib.AbstractContextManager[None]:
        """With overlap: `with opt.accumulate():` around each backward() of a batch but its last one; their gradients add
        up. Without overlap it changes nothing."""
        return contextlib.nullcontext() if self._gradients is None else self._gradients.accumulate()

    def log(self, values: Mapping[str, Any] | None = None, /, *, reduce: str = "mean", weight: float | None = None,
            **named: Any) -> None:
        """Logs numbers by name, within the loop: opt.log(accuracy=0.9, lr=0.1). values, reduce, weight: as of weir.Client.log(). Tensors on a
        GPU are waited for."""
        if weight is None and reduce == "mean" and self._local is not None and self._work is not None:
            weight = self._work.examples  # and not those of the whole round
        self.client.log(values, reduce=reduce, weight=weight, **named)

    def log_auc(self, name: str, scores: torch.Tensor, labels: torch.Tensor) -> None:
        """Logs scores, in [0, 1], and labels, 0 or 1, whose AUC is shown under the name (weir.Client.log_auc())."""
        self.client.log_auc(name, scores.detach().float().cpu(), labels.detach().float().cpu())

    def stop(self, reason: str) -> None:
        """Ends the job well before all of its examples are done; call step() for the batch at hand, and let the loop end by itself
        (weir.Client.stop()). reason: 1 to 1,000 bytes, for people."""
        self.client.stop(reason)

    # ---- reading the weights

    @contextlib.contextmanager
    def snapshot(self, keys: KeysOfTables | None = None) -> Iterator[int]:
        """Within `with`, the model has the newest consistent weights of the job, of one step in sync; then its own
        again. For evaluating while training. The value is their version: updates since the start. After the loop the
        model has the trained weights already. A worker whose membership was lost joins again, and sends nothing for the
        batch; JobDone: the others have done the job meanwhile.

        Embedding modules read the newest rows of the tables each time, which may be newer than the weights. keys: {"table":
        keys}, int64 of any shape: the rows of these keys are read with the weights, of the same version, and no others. Error:
        they are given outside the loop, when there are no servers to read them from; after it the modules have the rows of
        loader(final_keys=...)."""
        if self._client is None and keys is not None:
            raise Error("snapshot(keys=...) reads rows within the loop over loader(); for rows that the model has after the loop, "
                        "name their keys in loader(final_keys=...)")
        if self._client is None:
            yield -1
            return
        with self._rows.snapshot(self._client, self._weights, keys, self._as_member) as weights:
            yield weights.version

    def _kept_rows(self) -> contextlib.AbstractContextManager[None]:
        return self._rows.elsewhere(self.client, self._kept, self._as_member)

    def _as_member(self, call: Callable[[], T]) -> T:
        return call() if self._step is None else self._step.as_member(call)

    @property
    def client(self) -> Client:
        """This worker's membership, within the loop."""
        if self._client is None:
            raise Error("there is a client only within the loop over loader(); after it the optimizer has rank, and the model the trained "
                        "weights")
        return self._client

    @property
    def rank(self) -> int:
        """This worker's rank in the job, from 0 on; of one process 0. For what one worker of all does, such as saving the model. Error:
        before the first batch, where the cluster is not from TF_CONFIG alone."""
        return self._whole.rank if self._rank is None else self._rank

    @property
    def world_size(self) -> int:
        """How many workers the job is made for: cluster.workers, or those of TF_CONFIG; of one process 1. Fewer may live, and in sync the bits
        follow from consistency.parts instead. Error: neither says it."""
        return self._whole.workers

    @property
    def steps_total(self) -> int:
        """The steps of the whole job in sync, as optimizer.schedule counts them; each has consistency.parts batches, by whichever worker, or
        with local.steps so many rounds.
        ConfigError: in bounded and async a job has none. Error: consistency.parts is needed, and is not given."""
        return self._whole.steps

    @property
    def batches_total(self) -> int:
        """The batches of the whole job, in every mode, for all workers together: about batches_total / world_size come to one of them. Error:
        as of steps_total, with data.drop_last in sync."""
        return self._whole.batches

    @property
    def epoch(self) -> int:
        """The epoch of the first example of the newest batch, from 0 on. Error: there was no batch yet."""
        if self._epoch is None:
            raise Error("the epoch is known from the first batch on, since the job may go on from a checkpoint; read it in the loop")
        return self._epoch

    @property
    def local_step(self) -> int:
        """How many steps of `inner` have led to the weights of the batch at hand, the rounds before it included: its clock x local.steps, and
        the batches of its round. In sync it is the same on whichever worker, so rates that follow from it leave the bits as they are.
        Error: there is no inner."""
        if self._local is None:
            raise Error("local_step counts the steps of inner, which weir.torch.Optimizer was not given")
        return self._local.count

    # ---- what torch.optim.Optimizer has, and the job has in its place

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """ConfigError: a param_group cannot be added, since the job's tensors are agreed when it begins; optimizer.groups of the job gives
        parameters rates of their own."""
        if self.param_groups:
            raise ConfigError("the job's tensors are agreed when it begins; give groups their own rates with "
                              "optimizer.groups of the job")
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """ConfigError: a state_dict cannot be loaded, since the optimizer's state is the servers'."""
        raise ConfigError("the optimizer's state is on the servers, and in the job's checkpoints (checkpoint.directory); a "
                          "job that is started again goes on from the newest. model.load_state_dict() sets the initial "
                          "weights before the loop begins")

    @property
    def _step_supports_amp_scaling(self) -> bool:
        raise ConfigError("GradScaler cannot be used: a step that it skips would be missing in the job. bfloat16 "
                          "(torch.autocast(\"cpu\", torch.bfloat16)) needs no scaling")


def _seed_of_task(job_seed: int, task: str | None) -> int:
    """The same whenever this task of the cluster is started, and another one for each task."""
    named = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task")
    digest = hashlib.sha256(f"{job_seed} {task or named} {platform.node()}".encode()).digest()
    return int.from_bytes(digest[:8], "little") % 2**63
