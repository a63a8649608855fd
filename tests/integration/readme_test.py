"""C++ in the README is quoted from the examples, which are built and run."""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
examples = [path.read_text() for path in (root / "examples" / "cpp").glob("*.cpp")]
blocks = re.findall(r"```cpp\n(.*?)```", (root / "README.md").read_text(), re.S)
if not blocks:
    sys.exit("README.md: no ```cpp block")
for block in blocks:
    if not any(block in example for example in examples):
        sys.exit("README.md: this block is in no file of examples/cpp:\n" + block)
print(f"{len(blocks)} blocks quoted")
