"""Images that are decoded on demand, by processes that live for the whole run and serve both splits.

The death of a process is a LostProcessError: the run resumes from its newest checkpoint, with new processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from workloads.convnext.config import TrainConfig
from workloads.convnext.images import decoders
from workloads.convnext.images.decoders import Shared
from workloads.convnext.images.framing import Framing
from workloads.convnext.images.pictures import PictureStore, square
from workloads.convnext.images.sampling import Batch, Draw, Slot, chance
from workloads.errors import LostProcessError, WorkloadError, first_line

PART = 128
"""Most images of a slot that one process decodes by itself. Each epoch and each evaluation begins with nothing decoded:
shared out, the first slot is there sooner, and an evaluation of few slots keeps all processes busy."""

TRAIN = 0
"""The training split's number; others are only looked at."""

DEATHS = ("DataLoader worker", "Pin memory thread")
"""What torch's sentence for a dead process begins with. The thread that fetches batches for a GPU ends where what a
process left in its queue can no longer be had, of which torch tells its end alone (torch 2.15,
utils/data/dataloader.py, `_get_data`)."""

Visit = tuple[int, int, int]
"""A split, one of its images, and the seed of the choice of its part."""

Decoded = tuple[Tensor, int]
Answer = TypeVar("Answer")


class _Pictures(Dataset[Decoded | WorkloadError]):
    """The pictures of both splits, each cut and scaled to a square."""

    def __init__(self, stores: Sequence[PictureStore], config: TrainConfig) -> None:
        self._stores = stores
        self._framings = [Framing(config, train=split == TRAIN) for split in range(len(stores))]
        self._side = config.image_size

    def __getitem__(self, visit: Visit) -> Decoded | WorkloadError:
        split, index, seed = visit
        store = self._stores[split]
        frame = partial(self._framings[split], seed=seed)
        try:
            return square(store, index, frame, self._side), int(store.labels[index])
        except WorkloadError as error:
            # Returned, because a DataLoader raises a process's exception as another one, made from its traceback.
            return error


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
    """Images, uint8 [N, 3, S, S], channels last, and their labels, int64 [N]; or what is wrong with the first."""
    failed = [item for item in items if isinstance(item, WorkloadError)]
    if failed:
        return failed[0]
    decoded = [item for item in items if not isinstance(item, WorkloadError)]
    images = torch.stack([image for image, _ in decoded]).permute(0, 3, 1, 2)
    return images, torch.tensor([label for _, label in decoded])


class _Visits(Iterable[list[Visit]]):
    """The images that the loader is to fetch next; changed from epoch to epoch, since its processes outlast them."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.split = TRAIN
        self.slots: Sequence[Slot] = ()
        self.epoch = 0

    def __iter__(self) -> Iterator[list[Visit]]:
        split, epoch = self.split, self.epoch
        for slot in self.slots:
            for part in slot.indices.split(PART):
                seeds = chance(part, self._seed, epoch, Draw.FRAME)
                yield [(split, *visit) for visit in zip(part.tolist(), seeds.tolist(), strict=True)]


class _Copies:
    """Copies to a GPU, on a stream of their own: they cross while the GPU computes the step before.

    The host is a step ahead of the GPU, since nothing in a step waits for it, and so has the batch to send by then.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            images, labels = (one.to(self._device, non_blocking=True) for one in (images, labels))
        computing.wait_stream(self._stream)
        for copy in (images, labels):
            copy.record_stream(computing)  # else its memory would be given to the next copy while it is still read
        return images, labels


class _Loader:
    """Processes that decode both splits, one after the other."""

    def __init__(self, stores: Sequence[PictureStore], config: TrainConfig, device: torch.device) -> None:
        self.pictures = _Pictures(stores, config)
        self.copies = _Copies(device) if device.type == "cuda" else None
        self._visits = _Visits(config.seed)
        self._turn = object()
        self._apart = apart = config.loader_workers > 0 and not config.resident
        self._loader: DataLoader[Decoded | WorkloadError] = DataLoader(
            _Elsewhere(self.pictures) if apart else self.pictures,
            batch_sampler=self._visits,
            collate_fn=_collate,
            num_workers=config.loader_workers if apart else 0,
            multiprocessing_context=decoders.prepare() if apart else None,
            worker_init_fn=decoders.end_with_rank if apart else None,
            persistent_workers=apart,
            pin_memory=self.copies is not None,
        )

    def fetched(self, split: int, slots: Sequence[Slot], epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The parts of the slots in their order; what another iterator has not given yet is given up."""
        self._visits.split, self._visits.slots, self._visits.epoch = split, slots, epoch
        self._turn = mine = object()
        loader = self._told(lambda: iter(self._loader))
        while self._turn is mine:
            yield _checked(self._told(lambda: next(loader)))
        raise RuntimeError("the loader has begun with other images")

    def _told(self, ask: Callable[[], Answer]) -> Answer:
        """What the loader answers; raises LostProcessError if one of its processes has died."""
        try:
            return ask()
        except (RuntimeError, OSError, EOFError) as error:
            # A process was killed, for want of memory as a rule. torch has no type for it, but a sentence; or a batch's
            # memory can no longer be had from the dead, an error of sockets. A store's own errors are returned.
            if not self._apart or (isinstance(error, RuntimeError) and not str(error).startswith(DEATHS)):
                raise
            raise LostProcessError(
                f"a process that decodes images has died: {first_line(error)}",
                "Give the pod more memory and a larger /dev/shm, or lower the recipe's loader_workers.",
            ) from error


class StreamedImages:
    """One split, decoded when asked for; see `Source`."""

    def __init__(self, loader: _Loader, split: int, store: PictureStore) -> None:
        self.classes = store.classes
        self._loader = loader
        self._split = split
        self._count = len(store.labels)

    def __len__(self) -> int:
        return self._count

    def batches(self, slots: Sequence[Slot], epoch: int) -> Iterator[Batch]:
        fetched = self._loader.fetched(self._split, slots, epoch)
        copies = self._loader.copies
        for slot in slots:
            parts = [next(fetched) for _ in slot.indices.split(PART)]
            images, labels = (_joined(tensors, pinned=copies is not None) for tensors in zip(*parts, strict=True))
            yield Batch(*copies(images, labels), slot.pinned()) if copies else Batch(images, labels, slot)

    def decoded(self) -> tuple[Tensor, Tensor]:
        """All images, uint8 [N, 3, S, S], and their labels, int64 [N]."""
        return _checked(_collate([self._loader.pictures[self._split, index, 0] for index in range(len(self))]))


def streamed(stores: Sequence[PictureStore], config: TrainConfig, device: torch.device) -> list[StreamedImages]:
    """Splits that share the processes which decode them; these start with the first batch, and outlast every epoch.

    Args:
        stores: the pictures of the training split, and of the others.
        config: image size, augmentation, seed, number of loader processes.
        device: where the batches are wanted.
    """
    loader = _Loader(stores, config, device)
    return [StreamedImages(loader, split, store) for split, store in enumerate(stores)]


def _joined(parts: Sequence[Tensor], pinned: bool) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format  # as the parts have it
    joined = torch.empty(shape, dtype=parts[0].dtype, pin_memory=pinned, memory_format=layout)
    return torch.cat(list(parts), out=joined)


def _checked(batch: tuple[Tensor, Tensor] | WorkloadError) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, WorkloadError):
        return batch
    try:
        raise batch
    finally:
        # Its traceback would refer to this frame and this frame to it; freed as a cycle, a loader loses its queues
        # before it has told its processes to end, and waits five seconds for each.
        del batch
