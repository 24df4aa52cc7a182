"""Taking names, paths and kernel IR out of compiled executables, without touching what runs.

One module a form of executable. Whether the result is clean is not for them to say: `scrub_program`
asks the same scan that `luma verify --leaks` prints.
"""

from runtime.compiler.scrub.cpu import scrub_cpu_executable
from runtime.compiler.scrub.cuda import scrub_cuda_executable
from runtime.compiler.scrub.program import scrub_program

__all__ = ["scrub_cpu_executable", "scrub_cuda_executable", "scrub_program"]
