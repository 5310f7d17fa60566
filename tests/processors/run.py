"""`make processors`: the compiled products at every instruction level that this machine can run or emulate.

Each level is compiled separately (kernels.cpp). It runs on this CPU if it has the instructions, else under qemu's user
emulation. A level that neither can run is listed in the table and is not a failure.
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from regard import cpu, native

SOURCE = Path(__file__).with_name("kernels.cpp")
# The emulated CPU of each level: one without the instructions of the next level.
EMULATED = {"x86-64": "qemu64", "avx2": "Haswell", "neon": "cortex-a53", "neon-dot": "max"}


@dataclass
class Level:
    name: str
    flags: tuple[str, ...]
    needed: tuple[str, ...]
    arm: bool

    @property
    def is_foreign(self) -> bool:
        """Whether its programs are those of another architecture than this machine's."""
        return self.arm != cpu.is_arm()

    @property
    def architecture(self) -> str:
        return "aarch64" if self.arm else "x86_64"

    @property
    def compiler(self) -> str | None:
        if self.is_foreign:
            return shutil.which(f"{self.architecture}-linux-gnu-g++")
        return native.compiler_command()

    @property
    def runner(self) -> list[str] | None:
        """The command that runs the program; None if nothing here can run it."""
        if not self.is_foreign and cpu.has(*self.needed):
            return []
        emulator = shutil.which(f"qemu-{self.architecture}")
        if emulator is None or self.name not in EMULATED:
            return None
        # Debian's cross compilers bring the shared libraries of their architecture. Its static ones cannot be linked:
        # libm.a of x86-64 is a script that names files of the folder in which a native package would have them.
        libraries = ["-L", f"/usr/{self.architecture}-linux-gnu"] if self.is_foreign else []
        return [emulator, *libraries, "-cpu", EMULATED[self.name]]


def main() -> int:
    levels = [
        *(Level(name, *each, arm=False) for name, each in native.X86_LEVELS.items()),
        *(Level(name, *each, arm=True) for name, each in native.ARM_LEVELS.items()),
    ]
    print(f"{cpu.name()}: {', '.join(native.runnable_levels())}")
    with tempfile.TemporaryDirectory() as folder:
        rows = [(level.name, *_check(level, Path(folder))) for level in levels]
    for name, where, result in rows:
        print(f"{name:20}  {where:22}  {result}")
    missing = [name for name, where, _ in rows if where == "not run"]
    print(f"not run on this machine: {', '.join(missing) or 'none'}")
    return int(any(result.startswith("FAILED") for *_, result in rows))


def _check(level: Level, folder: Path) -> tuple[str, str]:
    """Where a level ran, and its result."""
    if level.compiler is None:
        return "not run", "no compiler for it"
    if level.runner is None:
        return "not run", "neither this CPU nor an emulator here has its instructions"
    program = folder / level.name
    command = [level.compiler, *native.FLAGS, *level.flags, str(SOURCE), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        return "not run", f"FAILED to compile: {built.stderr.splitlines()[-1]}"
    done = subprocess.run([*level.runner, str(program)], capture_output=True, text=True, check=False)
    where = "this CPU" if not level.runner else f"{Path(level.runner[0]).name} {level.runner[-1]}"
    said = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()[-1]
    return where, said if done.returncode == 0 else f"FAILED ({done.returncode}): {said}"


if __name__ == "__main__":
    sys.exit(main())
