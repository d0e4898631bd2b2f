"""The way between a device's memory and the host's: explicit copies, counted in bytes."""

import torch


class Link:
    """Copy tensors between a device and the host, and count the bytes.

    On CUDA, the host's side is pinned memory, and the copies run on a stream of their own. On the
    CPU, device and host are the same memory: the copies are made and counted all the same.

    Attributes:
        to_host, to_device: bytes copied so far.
    """

    def __init__(self):
        self.to_host = self.to_device = 0
        self.streams: dict[torch.device, torch.cuda.Stream] = {}

    def down(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start to copy a tensor to new host memory. Call `wait_on_host` before you read it."""
        tensor = tensor.detach()
        self.to_host += tensor.numel() * tensor.element_size()
        host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        if not tensor.is_cuda:
            return host.copy_(tensor)
        with torch.cuda.stream(self.stream(tensor.device)):
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self.stream(tensor.device))
        return host

    def up(self, source: torch.Tensor, target: torch.Tensor):
        """Start to copy a host tensor to a tensor on the device, cast to the latter's dtype.

        The cast is on the host. Call `wait_on_device` before the device reads the target.
        """
        self.to_device += target.numel() * target.element_size()
        if not target.is_cuda:
            target.copy_(source)
            return
        staged = torch.empty_like(target, device="cpu", pin_memory=True).copy_(source)
        with torch.cuda.stream(self.stream(target.device)):
            target.copy_(staged, non_blocking=True)

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """The stream of the copies. It starts after what the device has been given so far."""
        if device not in self.streams:
            self.streams[device] = torch.cuda.Stream(device)
        self.streams[device].wait_stream(torch.cuda.current_stream(device))
        return self.streams[device]

    def wait_on_host(self):
        """Wait until all copies have ended."""
        for stream in self.streams.values():
            stream.synchronize()

    def wait_on_device(self):
        """Let the device's current streams wait for all copies; the host goes on."""
        for device, stream in self.streams.items():
            torch.cuda.current_stream(device).wait_stream(stream)
