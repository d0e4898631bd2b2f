"""The transport over MPI, by mpi4py, for ranks that `mpiexec` started."""

import torch

from helpers.comm.messages import written_in_a_row


class MPITransport:
    """The interface of `GroupTransport` over an MPI communicator; tensors on the CPU.

    Importing mpi4py initializes MPI, so the import is here and not at the top of the file.

    Args:
        communicator: mpi4py's; COMM_WORLD by default.

    Attributes:
        rank, size: this rank's place in the communicator, and the communicator's size.
    """

    def __init__(self, communicator=None):
        from mpi4py import MPI

        self.mpi, self.communicator = MPI, communicator or MPI.COMM_WORLD
        self.rank, self.size = self.communicator.Get_rank(), self.communicator.Get_size()

    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(numel, dtype=dtype, device=device)

    def all_reduce(self, buffer: torch.Tensor) -> "Request":
        """Start to sum over the ranks, in place (MPI_Iallreduce).

        MPI works only inside its own calls: most of the work happens in `wait`.

        Raises:
            TypeError: MPI does not have this dtype (bfloat16, float16).
            ValueError: the buffer is not contiguous.
        """
        return Request(self.communicator.Iallreduce(self.mpi.IN_PLACE, as_array(buffer)), buffer)

    def broadcast(self, tensor: torch.Tensor, source: int = 0):
        """Copy the tensor of the rank `source` to every rank, in place (MPI_Bcast)."""
        with written_in_a_row(tensor) as row:
            if row.numel():
                # as bytes, so that any dtype works
                self.communicator.Bcast(row.view(torch.uint8).numpy(), root=source)

    def close(self):
        """Do nothing: MPI ends with the process."""


class Request:
    """MPI's request as a Work; it keeps the buffer alive."""

    def __init__(self, request, buffer: torch.Tensor):
        self.request, self.buffer = request, buffer

    def wait(self):
        self.request.Wait()


def as_array(tensor: torch.Tensor):
    """Return the tensor's memory as an array for mpi4py."""
    if tensor.dtype in (torch.bfloat16, torch.float16):
        raise TypeError(f"MPI cannot add {tensor.dtype}: convert the buffer to float32")
    if not tensor.is_contiguous():
        raise ValueError("MPI needs a contiguous buffer: call contiguous() first")
    return tensor.detach().view(-1).numpy()
