"""Schemathesis against the server at SPINFER_URL, by the document that it serves.

At least 500 requests; with --all, at least 5,000. They are the same ones in every run.
"""

import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

URL = os.environ["SPINFER_URL"]
FOLDER = pathlib.Path(__file__).resolve().parent

everything = "--all" in sys.argv[1:]
# What must be sent, and examples that suffice for it: of completions, and of each other operation.
wanted, of_completions, of_others = (5000, 2500, 700) if everything else (500, 120, 40)


def get(path):
    with urllib.request.urlopen(URL + path, timeout=60) as answer:
        return answer.read()


def run(folder, selection, examples):
    """Runs the selected operations; what was sent, and whether all went well."""
    counts = folder / "counts.json"
    counts.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(FOLDER),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SCHEMATHESIS_HOOKS": "schemathesis_hooks",
        "SPINFER_MODEL": json.loads(get("/v1/models"))["data"][0]["id"],
        "SPINFER_COUNTS": str(counts),
    }
    command = [sys.executable, "-m", "schemathesis.cli"]
    command += ["--config-file", str(FOLDER / "schemathesis.toml"), "run", "openapi.json"]
    command += ["--url", URL, selection, "/v1/completions", "--max-examples", str(examples)]
    passed = subprocess.run([*command, "--no-color"], cwd=folder, env=environment).returncode == 0
    return collections.Counter(json.loads(counts.read_text()) if counts.exists() else {}), passed


begin = time.monotonic()
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    # In a file, since a document's own address is left out of what is tested.
    (folder / "openapi.json").write_bytes(get("/openapi.json"))
    completions, completions_passed = run(folder, "--include-path", of_completions)
    others, others_passed = run(folder, "--exclude-path", of_others)
seconds = time.monotonic() - begin

counts = completions + others
for name in sorted(counts):
    print(f"{counts[name]:6} {name}")
print(f"{counts['sent']} requests in {seconds:.0f} s")

assert completions_passed and others_passed, "Schemathesis found something; see above"
assert counts["sent"] >= wanted, f"{counts['sent']} requests; {wanted} are wanted"
# Else little was tested but refusals.
answered, streams = counts["POST /v1/completions 200"], counts["streams"]
assert answered >= wanted // 10, f"only {answered} completions"
assert streams >= wanted // 50, f"only {streams} streams"
print("ok")
