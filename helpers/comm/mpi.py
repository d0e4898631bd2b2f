"""The same transport over MPI, by mpi4py: what the ranks of `mpiexec` send their buffers with."""

import torch

from helpers.comm.messages import written_in_a_row


class MPITransport:
    """The interface of `GroupTransport` over an MPI communicator; tensors on the CPU.

    Importing mpi4py starts MPI, so it is imported here and not before.

    Args:
        communicator: mpi4py's; COMM_WORLD by default.

    Attributes:
        rank, size: this rank's place in the communicator, and how many there are.
    """

    def __init__(self, communicator=None):
        from mpi4py import MPI

        self.mpi, self.communicator = MPI, communicator or MPI.COMM_WORLD
        self.rank, self.size = self.communicator.Get_rank(), self.communicator.Get_size()

    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(numel, dtype=dtype, device=device)

    def all_reduce(self, buffer: torch.Tensor) -> "Request":
        """Start to sum over the ranks, in place (MPI_Iallreduce).

        MPI does the work inside of its calls: most of it happens in `wait`.

        Raises:
            TypeError: MPI has no such numbers (bfloat16).
            ValueError: the buffer is not contiguous.
        """
        return Request(self.communicator.Iallreduce(self.mpi.IN_PLACE, as_array(buffer)), buffer)

    def broadcast(self, tensor: torch.Tensor, source: int = 0):
        """Copy the tensor of the rank `source` to all, in place (MPI_Bcast)."""
        with written_in_a_row(tensor) as row:
            if row.numel():
                # as bytes, so that any dtype travels
                self.communicator.Bcast(row.view(torch.uint8).numpy(), root=source)

    def close(self):
        """Nothing to give back: MPI ends with the process."""


class Request:
    """MPI's request as a Work; it keeps the buffer alive."""

    def __init__(self, request, buffer: torch.Tensor):
        self.request, self.buffer = request, buffer

    def wait(self):
        self.request.Wait()


def as_array(tensor: torch.Tensor):
    """The tensor's memory as mpi4py takes it."""
    if tensor.dtype in (torch.bfloat16, torch.float16):
        raise TypeError(f"MPI has no {tensor.dtype} to add: send float32")
    if not tensor.is_contiguous():
        raise ValueError("MPI takes contiguous buffers")
    return tensor.detach().view(-1).numpy()
