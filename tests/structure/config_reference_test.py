#!/usr/bin/python3
"""Checks configs/job.schema.json and docs/config.md: they are what tools/config_reference.py makes of proto/job_config.proto; the
schema takes every config that comes with Weir, and refuses what the reader of configs refuses, where a schema can say it.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(os.path.realpath("WORKSPACE")).parent
try:
    import jsonschema
except ImportError:
    jsonschema = None

# As in tests/common/config/job_config_test.cc.
WRONG = [
    '{"seeds": 1}', '{"seed": -1}', '{"seed": 1.5}', '{"name": 7}', '{"data": []}', '{"data": {"batch_size": 0}}',
    '{"data": {"format": "mnist"}}', '{"data": {"separator": ""}}', '{"train": {"epochs": 0}}', '{"train": {"clip_norm": -1}}',
    '{"consistency": {"mode": "SYNC"}}', '{"consistency": {"parts": 1025}}', '{"optimizer": {"momentum": 1}}',
    '{"optimizer": {"groups": [{"frozen": true}]}}', '{"model": {"layers": []}}', '{"model": {"layers": [{"units": 3}]}}',
    '{"model": {"layers": [{"type": "dense", "units": 0}]}}', '{"tables": [{"name": "t"}]}', '{"wire": {"chunk_kib": "512"}}',
    '{"checkpoint": {"directory": ""}}', '{"$schema": 1}',
    # Fields that go with some words of another field.
    '{"consistency": {"mode": "bounded"}}', '{"consistency": {"staleness": 2}}', '{"consistency": {"mode": "async", "parts": 2}}',
    '{"consistency": {"staleness_policy": {"type": "scale"}}}',
    '{"consistency": {"mode": "async", "staleness_policy": {"type": "drop"}}}',
    '{"optimizer": {"momentum": 0.5}}', '{"optimizer": {"type": "adam", "decay": 0.5}}', '{"optimizer": {"schedule": {"type": "step"}}}',
    '{"model": {"layers": [{"type": "dense"}]}}', '{"model": {"layers": [{"type": "relu", "units": 2}]}}', '{"data": {"format": "csv"}}',
    '{"data": {"format": "digits", "header": true}}',
]


def without_comments(text):
    return re.sub(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', lambda m: m.group(1) or "", text, flags=re.S)


def main():
    subprocess.run(["/usr/bin/python3", ROOT / "tools/config_reference.py", "--check"], check=True)
    if jsonschema is None:
        sys.exit("no module jsonschema: ./dev test installs python3-jsonschema")
    validator = jsonschema.Draft7Validator(json.loads((ROOT / "configs/job.schema.json").read_text(encoding="utf-8")))
    jobs = [path for pattern in ("configs/*.json", "examples/*.json", "deploy/**/job.json") for path in sorted(ROOT.glob(pattern))
            if not path.name.startswith("cluster_") and not path.name.endswith(".schema.json")]
    assert len(jobs) > 10, jobs
    for path in jobs:
        job = json.loads(without_comments(path.read_text(encoding="utf-8")))
        for error in validator.iter_errors(job):
            sys.exit(f"the schema refuses {path}: {error.json_path}: {error.message}")
    for text in WRONG:
        if validator.is_valid(json.loads(text)):
            sys.exit(f"the schema takes {text}")
    print(f"{len(jobs)} configs are valid, {len(WRONG)} wrong ones are not")


main()
