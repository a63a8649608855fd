"""Compares ptxas's figures of the decode kernel with the table in src/cuda/sm90/README.md.

Usage: check_resources.py NVCC SOURCE_ROOT. Compiles launch.cu alone; exits with 77 (skipped) under
another release of nvcc than the table's, as the figures are that release's.
"""

import pathlib
import re
import subprocess
import sys

nvcc, root = sys.argv[1], pathlib.Path(sys.argv[2])
readme = (root / "src/cuda/sm90/README.md").read_text()
release = re.search(r"ptxas (\d+\.\d+):", readme).group(1)
version = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
if f"release {release}," not in version:
    print(f"the table is for ptxas {release}; this is\n{version}")
    sys.exit(77)

expected = {
    int(rows): tuple(map(int, figures))
    for rows, *figures in re.findall(
        r"^\| `Config<(\d+)>` \|.*\| (\d+) \| (\d+) / (\d+) \|$", readme, re.M)
}
command = [nvcc, "-std=c++20", "-O3", "-DNDEBUG", "-gencode=arch=compute_90a,code=sm_90a",
           "-Xptxas=-v", "-cubin", "-o", "/dev/null", f"-I{root}/include", f"-I{root}/src",
           str(root / "src/cuda/sm90/decode_e4m3/launch.cu")]
log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
actual = {
    int(rows): tuple(map(int, figures))
    for rows, *figures in re.findall(
        r"Function properties for \S*ConfigILi(\d+)E\S*\s+(\d+) bytes stack frame, "
        r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
}
serialized = re.findall(r".*C75\d\d.*", log)
print(f"(stack frame, spill stores, spill loads) by rows\nREADME.md: {expected}\nptxas:     {actual}")
if serialized:
    print("wgmma is serialized:", *serialized, sep="\n")
sys.exit(0 if expected and actual == expected and not serialized else 1)
