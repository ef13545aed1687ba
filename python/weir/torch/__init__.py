"""PyTorch models on Weir: the optimizer's rule runs on the servers, and the job says which examples to compute.

    opt = weir.torch.Optimizer(model, "job.json", train_set)   # was: torch.optim.Adam(model.parameters())
    for x, y in opt.loader(num_workers=4):                     # was: DataLoader(train_set, ...)
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()

Or `for epoch in opt.epochs(num_workers=4): for x, y in epoch:`.
"""
from .config import JobFields, job
from .embedding import Embedding, EmbeddingBag
from .optimizer import Optimizer
from .reader import Reader
from .weights import save_weights

__all__ = ["Embedding", "EmbeddingBag", "JobFields", "Optimizer", "Reader", "job", "save_weights"]
