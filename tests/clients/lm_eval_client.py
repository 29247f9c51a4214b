"""lm-evaluation-harness's `local-completions`, unchanged, against the server at SPINFER_URL, in each of the ways that
it tokenizes. Prints what it made of the answers, as JSON; `clients.rs` knows what it should be.

SPINFER_TOKENIZER is a folder with the model's `tokenizer.json` and a `tokenizer_config.json`.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

cache = tempfile.TemporaryDirectory()
os.environ.update(HF_HOME=cache.name, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
os.chdir(Path(__file__).parent)  # the tasks name their data from here

import lm_eval  # noqa: E402, it reads the environment
from lm_eval.tasks import TaskManager  # noqa: E402

MODEL = {"model": "smollm2-135m-instruct", "base_url": os.environ["SPINFER_URL"] + "/v1/completions"}
WAYS = {
    # It asks the server whether it tokenizes, and has it do so.
    "remote": {},
    "remote, in batches": {"batch_size": 4},
    "remote, several at a time": {"batch_size": 2, "num_concurrent": 3},
    # It still tokenizes, to know where a context ends, but sends texts.
    "remote, as texts": {"tokenized_requests": False},
    "local": {"tokenizer_backend": "huggingface", "tokenizer": os.environ["SPINFER_TOKENIZER"]},
}
TASKS = ["spinfer_pairs", "spinfer_texts", "spinfer_beginnings"]

manager = TaskManager(include_path="lm_eval_tasks", include_defaults=False)
found = {}
for way, options in WAYS.items():
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={**MODEL, "max_retries": 1, **options},
        tasks=TASKS,
        task_manager=manager,
        bootstrap_iters=0,
    )
    found[way] = {
        task: [
            sample["resps"][0][0]
            for sample in sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
        ]
        for task in TASKS
    }
json.dump(found, sys.stdout)
