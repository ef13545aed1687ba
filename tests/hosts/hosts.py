#!/usr/bin/python3
"""Runs jobs whose tasks have hosts of their own, breaks the hosts and their links, and checks what comes of it.

    hosts.py [--weir=PROGRAM] [--config=FILE] [--image=DIR --python_image=DIR] [--list] [SCENARIO...]

All scenarios, if none is named; with --image those of the images that tools/build_image.sh has put into these folders. Prints for
each what was injected and what was seen. Needs root; where namespaces may not be made nothing runs, and a line says so."""
import argparse
import functools
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

sys.dont_write_bytecode = True
import network  # pylint: disable=wrong-import-position
from job import ENVIRONMENT, Failed, LocalJob, Skipped  # pylint: disable=wrong-import-position
from scenarios import SCENARIOS  # pylint: disable=wrong-import-position
import ssh_scenarios  # pylint: disable=wrong-import-position,unused-import


class World:
    """The network, and the programs and config of its jobs. `undisturbed` tells what their weights should be."""

    def __init__(self, weir, config, images, folder):
        self.weir, self.config, self.folder = weir, config, folder
        self.image, self.python_image = images
        # Where the programs and the config are: those of a build tree are links to files elsewhere.
        self.programs = {self.weir.parents[1], self.config.parent}
        self.network = network.Network(folder)
        self.jobs, self._at_end = [], []

    def job(self, servers, workers, settings, **how):
        return self.add(LocalJob(self, servers, workers, settings, **how))

    def add(self, job):
        """Ends with the scenario."""
        self.jobs.append(job)
        return job

    def undisturbed(self, settings):
        """weights_sha256 of a job with these settings on one host, to which nothing happens."""
        return self._undisturbed(tuple(settings.items()))

    @functools.cache
    def _undisturbed(self, settings):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder, prefix="undisturbed-"))
        summary = folder / "summary.json"
        changed = [f"--set={field}={value}" for field, value in (*settings, ("checkpoint.directory", folder / "checkpoints"))]
        done = subprocess.run([self.weir, "up", "--ps=2", "--workers=3", self.config, *changed, f"--summary={summary}"],
                              check=False, capture_output=True, text=True, env=ENVIRONMENT)
        if done.returncode != 0:
            raise Failed(f"the undisturbed job has ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return json.loads(summary.read_text(encoding="utf-8"))["weights_sha256"]

    def at_end(self, function):
        """Is called when the scenario has ended, after its jobs."""
        self._at_end.append(function)

    def close(self):
        for end in [*(job.close for job in self.jobs), *self._at_end]:
            end()
        self.jobs.clear()
        self._at_end.clear()

    def logs(self):
        for job in self.jobs:
            for pod in job.starts:
                yield f"--- {pod.log_path.name}\n{pod.log()[-2500:]}"


def run(name, world):
    """Whether the scenario has passed, or been skipped."""
    print(f"{name}: {SCENARIOS[name].__doc__}", flush=True)
    begin = time.monotonic()
    try:
        SCENARIOS[name](world)
        print(f"  passed in {time.monotonic() - begin:.1f} s", flush=True)
        return True
    except Skipped as reason:
        print(f"SKIPPED: {name}: {reason}", flush=True)
        return True
    except Failed as failure:
        print(f"  FAILED: {failure}")
    except Exception:  # pylint: disable=broad-except
        print(f"  FAILED:\n{traceback.format_exc()}")
    finally:
        logs = "\n".join(world.logs())
        world.close()
    print(logs, flush=True)
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="cli/weir", type=pathlib.Path)
    parser.add_argument("--config", default="deploy/kustomize/common/job.json", type=pathlib.Path)
    parser.add_argument("--image", type=pathlib.Path)
    parser.add_argument("--python_image", type=pathlib.Path)
    parser.add_argument("--list", action="store_true", help="the scenarios")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO")
    arguments = parser.parse_args()
    if arguments.image:
        SCENARIOS.clear()
        import compose_scenarios  # pylint: disable=import-outside-toplevel,unused-import
    if arguments.list:
        for name, function in SCENARIOS.items():
            print(f"{name:20} {function.__doc__}")
        return 0
    unknown = [name for name in arguments.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario '{unknown[0]}'; there are {', '.join(SCENARIOS)}")
    folder, reason = network.enter()
    if folder is None:
        print(f"SKIPPED: {reason}")
        return 0
    world = World(arguments.weir.resolve(), arguments.config.resolve(), (arguments.image, arguments.python_image), folder)
    failed = [name for name in arguments.scenarios or SCENARIOS if not run(name, world)]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
