"""Compile a kernel for a GPU that is not here, and count what the GPU would do.

Triton's compiler needs no GPU: it makes PTX (NVIDIA's virtual instructions), and NVIDIA's assembler
in Triton's package makes the cubin (the real instructions, SASS, for one kind of GPU).
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

WARP = 32  # threads


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel.

    Attributes:
        ptx: the virtual instructions, as text.
        sass: the GPU's own instructions, as text.
        registers: 32-bit registers of each thread.
        stack: bytes of local memory of each thread; more than 0 if registers spill.
        threads: of a program.
        block: the numbers that a program updates.
    """

    ptx: str
    sass: str
    registers: int
    stack: int
    threads: int
    block: int

    def instructions(self, pattern: str) -> Counter:
        """Count the instructions of the SASS that match the pattern, by their names."""
        return Counter(re.findall(rf"(?<![\w.]){pattern}(?![\w.])", self.sass))

    def bytes_per_parameter(self) -> dict[str, float]:
        """Bytes that vector loads and stores move for each parameter: {"loads": …, "stores": …}."""

        def moved(word):
            vectors = re.findall(rf"\b{word}\.global\b[\w.:]*\.v(\d)\.b(\d+)", self.ptx)
            return sum(int(count) * int(bits) // 8 for count, bits in vectors)

        each = self.threads / self.block
        return {"loads": each * moved("ld"), "stores": each * moved("st")}

    def spills(self) -> int:
        """Loads and stores of local memory, where registers go if there are too few."""
        return self.instructions(r"(?:LDL|STL)[\w.]*").total()


def assembled(
    kernel,
    types: dict,
    constants: dict,
    capability: int,
    options: dict,
    block: int,
    aligned: Iterable[str] = (),
) -> Compiled:
    """Compile down to SASS.

    Args:
        types: Triton's names of the arguments' types, by argument.
        constants: the values of the other arguments.
        capability: of the GPU: 80 for A100, 90 for H100, 100 for B200.
        options: of the launch, with num_warps.
        block: the numbers that a program updates.
        aligned: arguments that are multiples of 16. A launch finds out, and compiles for them.
    """
    attributes = {(kernel.arg_names.index(n),): [["tt.divisibility", 16]] for n in aligned}
    types = types | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, types, constants, attributes)
    made = triton.compile(source, GPUTarget("cuda", capability, WARP), options=options)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(made.asm["cubin"])
        usage = tool("cuobjdump", "--dump-resource-usage", file)
        sass = tool("nvdisasm", "--print-code", file)
    [registers] = re.findall(r"REG:(\d+)", usage)
    [stack] = re.findall(r"STACK:(\d+)", usage)
    threads = WARP * options["num_warps"]
    return Compiled(made.asm["ptx"], sass, int(registers), int(stack), threads, block)


def tool(name: str, *arguments) -> str:
    """Run a program of Triton's package, and return what it prints."""
    program = getattr(triton.knobs.nvidia, name).path
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=True, timeout=60
    ).stdout
