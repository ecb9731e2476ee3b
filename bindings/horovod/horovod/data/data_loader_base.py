"""BaseDataLoader, the interface of a loader, and AsyncDataLoaderMixin, which lets any loader run ahead in a thread."""

import queue
import threading

_END = object()


class BaseDataLoader:
    """A loader: subclasses define __len__ and _iterate(), a generator of batches."""

    def __len__(self):
        raise NotImplementedError(f"{type(self).__name__} has to define __len__, the number of batches")

    def _iterate(self):
        raise NotImplementedError(f"{type(self).__name__} has to define _iterate, a generator of batches")

    def _process_batch(self, batch):
        """Returns the batch that the caller gets. Subclasses may override it, for example to copy it to a device."""
        return batch

    def __iter__(self):
        for batch in self._iterate():
            yield self._process_batch(batch)


class _Failure:
    def __init__(self, error):
        self.error = error


class AsyncDataLoaderMixin:
    """Runs the loader behind it in a thread, which stays at most `async_loader_queue_size` batches ahead.

        class AsyncLoader(AsyncDataLoaderMixin, Loader): ...

    0 iterates in the caller's thread. An exception of the loader is raised where its batch would have come. One
    iteration at a time: a new one ends the one before, as does close_async_loader().
    """

    def __init__(self, async_loader_queue_size=64, *args, **kwargs):
        if async_loader_queue_size < 0:
            raise ValueError(f"async_loader_queue_size={async_loader_queue_size}: give a number of batches, or 0")
        self.async_loader_queue_size = async_loader_queue_size
        self._thread = None
        super().__init__(*args, **kwargs)

    def close_async_loader(self):
        """Ends the thread and drops the batches that it has prepared. It waits for the batch in progress."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._closing.set()
        while thread.is_alive():
            _drain(self._batches)  # the thread may be blocked by a full queue
            thread.join(0.05)

    def __iter__(self):
        if self.async_loader_queue_size == 0:
            yield from super().__iter__()
            return
        self.close_async_loader()
        batches, closing = queue.Queue(self.async_loader_queue_size), threading.Event()
        self._batches, self._closing = batches, closing
        self._thread = threading.Thread(
            target=self._run_ahead, args=(batches, closing), name="AsyncDataLoader", daemon=True
        )
        self._thread.start()
        try:
            while not closing.is_set():
                batch = batches.get()
                if batch is _END:
                    return
                if isinstance(batch, _Failure):
                    raise batch.error
                yield self._process_batch(batch)
        finally:
            if self._batches is batches:  # no later iteration has begun
                self.close_async_loader()

    def _run_ahead(self, batches, closing):
        try:
            for batch in self._iterate():
                batches.put(batch)
                if closing.is_set():
                    return
            batches.put(_END)
        except BaseException as error:
            batches.put(_Failure(error))


def _drain(batches):
    try:
        while True:
            batches.get_nowait()
    except queue.Empty:
        pass
