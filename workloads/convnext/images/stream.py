"""Images that are decoded and augmented on demand, by processes that live for the whole run.

The death of a process is a LostProcessError: the run resumes from its newest checkpoint, with new processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from workloads.convnext.config import TrainConfig
from workloads.convnext.images import decoders
from workloads.convnext.images.augment import keyed, loader_transform
from workloads.convnext.images.decoders import Shared
from workloads.convnext.images.pictures import PictureStore, decode
from workloads.convnext.images.sampling import Batch, Slot
from workloads.errors import LostProcessError, WorkloadError, first_line

PART = 128
"""Most images of a slot that one process decodes by itself. Each epoch and each evaluation begins with nothing decoded:
shared out, the first slot is there sooner, and an evaluation of few slots keeps all processes busy."""

DEATHS = ("DataLoader worker", "Pin memory thread")
"""What torch's sentence for a dead process begins with. The thread that fetches batches for a GPU ends where what a
process left in its queue can no longer be had, of which torch tells its end alone (torch 2.15,
utils/data/dataloader.py, `_get_data`)."""

Visit = tuple[int, int]
"""An image and the epoch in which it is seen: all that its alteration depends on."""

Decoded = tuple[Tensor, int]


class _Pictures(Dataset[Decoded | WorkloadError]):
    """Each picture of a split, decoded and altered."""

    def __init__(self, store: PictureStore, config: TrainConfig, train: bool) -> None:
        self._store = store
        self._transform = loader_transform(config, train)
        self._seed = config.seed

    def __getitem__(self, visit: Visit) -> Decoded | WorkloadError:
        index, epoch = visit
        try:
            picture = decode(self._store, index)
        except WorkloadError as error:
            # Returned, because a DataLoader raises a process's exception as another one, made from its traceback.
            return error
        return keyed(self._transform, picture, index, self._seed, epoch), int(self._store.labels[index])


class _Elsewhere(Dataset[Decoded | WorkloadError]):
    """The same pictures in the loader's processes."""

    def __init__(self, pictures: _Pictures) -> None:
        self._shared = Shared(pictures)

    @cached_property
    def _pictures(self) -> _Pictures:
        return self._shared.value()

    def __getitem__(self, visit: Visit) -> Decoded | WorkloadError:
        return self._pictures[visit]


def _collate(items: list[Decoded | WorkloadError]) -> tuple[Tensor, Tensor] | WorkloadError:
    failed = [item for item in items if isinstance(item, WorkloadError)]
    if failed:
        return failed[0]
    decoded = [item for item in items if not isinstance(item, WorkloadError)]
    return torch.stack([image for image, _ in decoded]), torch.tensor([label for _, label in decoded])


class _Visits(Iterable[list[Visit]]):
    """The images that the loader is to fetch next; changed from epoch to epoch, since its processes outlast them."""

    def __init__(self) -> None:
        self.slots: Sequence[Slot] = ()
        self.epoch = 0

    def __iter__(self) -> Iterator[list[Visit]]:
        for slot in self.slots:
            for part in slot.indices.split(PART):
                yield [(index, self.epoch) for index in part.tolist()]


class StreamedImages:
    """One split, decoded when asked for; see `Source`."""

    def __init__(self, store: PictureStore, config: TrainConfig, train: bool) -> None:
        """Prepare the loader; its processes start with the first batch, and outlast every epoch.

        Args:
            store: where the pictures are.
            config: image size, augmentation, seed, number of loader processes.
            train: whether the images are to be learnt from, and so altered.
        """
        self.classes = store.classes
        self._pictures = _Pictures(store, config, train)
        self._labels = store.labels
        self._visits = _Visits()
        self._pinned = torch.cuda.is_available()
        self._apart = apart = config.loader_workers > 0 and not config.resident
        self._loader: DataLoader[Decoded | WorkloadError] = DataLoader(
            _Elsewhere(self._pictures) if apart else self._pictures,
            batch_sampler=self._visits,
            collate_fn=_collate,
            num_workers=config.loader_workers if apart else 0,
            multiprocessing_context=decoders.prepare() if apart else None,
            worker_init_fn=decoders.end_with_rank if apart else None,
            persistent_workers=apart,
            pin_memory=self._pinned,
        )

    def __len__(self) -> int:
        return len(self._labels)

    def batches(self, slots: Sequence[Slot], epoch: int) -> Iterator[Batch]:
        self._visits.slots, self._visits.epoch = slots, epoch
        fetched = iter(self._loader)
        for slot in slots:
            parts = [_next(fetched, self._apart) for _ in slot.indices.split(PART)]
            images, labels = (_joined(tensors, self._pinned) for tensors in zip(*parts, strict=True))
            yield Batch(images, labels, slot.pinned() if self._pinned else slot)

    def decoded(self) -> tuple[Tensor, Tensor]:
        """All images, uint8 [N, 3, S, S], and their labels, int64 [N]."""
        return _checked(_collate([self._pictures[index, 0] for index in range(len(self))]))


def _joined(parts: Sequence[Tensor], pinned: bool) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    return torch.cat(list(parts), out=torch.empty(shape, dtype=parts[0].dtype, pin_memory=pinned))


def _checked(batch: tuple[Tensor, Tensor] | WorkloadError) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, WorkloadError):
        return batch
    try:
        raise batch
    finally:
        # Its traceback would refer to this frame and this frame to it; freed as a cycle, a loader loses its queues
        # before it has told its processes to end, and waits five seconds for each.
        del batch


def _next(fetched: Iterator[tuple[Tensor, Tensor] | WorkloadError], apart: bool) -> tuple[Tensor, Tensor]:
    try:
        return _checked(next(fetched))
    except (RuntimeError, OSError, EOFError) as error:
        # A process was killed, for want of memory as a rule. torch has no type for it, but a sentence; or a batch's
        # memory can no longer be had from the dead, which is an error of sockets. A store's own errors are returned.
        if not apart or (isinstance(error, RuntimeError) and not str(error).startswith(DEATHS)):
            raise
        raise LostProcessError(
            f"a process that decodes images has died: {first_line(error)}",
            "Give the pod more memory and a larger /dev/shm, or lower the recipe's loader_workers.",
        ) from error
