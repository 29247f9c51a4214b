#!/usr/bin/env python3
"""Checks what is in deploy/ without a container engine and without a cluster.

    python3 -m venv target/recipes
    target/recipes/bin/pip install --requirement deploy/requirements.txt
    target/recipes/bin/python deploy/check.py

`cargo xtask test` does that, too.

Prints a line for each file, and below it what is wrong with it, and exits with 1 if anything is.

Manifests are held against the schemas that Kubernetes, KEDA and the Prometheus operator publish, as those packages
have them; none has those of KEDA's HTTP add-on. What files repeat of the source code is held against that.
"""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

try:
    import tomllib
except ImportError:
    import tomli as tomllib

import kubernetes_validate
import yaml

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
# The first that the manifests are for (preStop.sleep), and the last that the package has.
KUBERNETES = ["1.30", "1.37"]
CUSTOM = {
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
}
UNPACKAGED = ["http.keda.sh/v1alpha1", "http.keda.sh/v1beta1"]


def source(path):
    return (ROOT / path).read_text()


def found(pattern, path):
    """What the pattern's group is in a file of the sources."""
    match = re.search(pattern, source(path))
    return match.group(1) if match else sys.exit(f"{path} has nothing like {pattern}")


DRAIN = int(found(r"const DRAIN: Duration = Duration::from_secs\((\d+)\)", "host/src/http/server.rs"))
HEALTH = found(r'const HEALTH: &str = "([^"]+)"', "host/src/http/service.rs")
METRICS = set(re.findall(r'"((?:vllm:|spinfer_)\w+)"', source("host/src/nn/metrics.rs")))
METRICS |= set(re.findall(r'"(spinfer_\w+)"', source("host/src/http/metrics.rs")))
SETTINGS = re.findall(r"pub (\w+): ", found(r"pub struct NnConfig \{([^}]+)\}", "host/src/config.rs"))
APPLICATION = tomllib.loads(source("spin.toml"))
UID = found(r"(?m)^USER (\d+):", "deploy/Containerfile")
CACHE = found(r"SPINFER_CACHE_DIR=(\S+)", "deploy/Containerfile")


def unknown_fields(given, read, at=""):
    """The fields of a document that the model of its kind has dropped."""
    if isinstance(given, dict) and isinstance(read, dict):
        for name, value in given.items():
            if name not in read:
                yield f"unknown field {at}{name}"
            else:
                yield from unknown_fields(value, read[name], f"{at}{name}.")
    elif isinstance(given, list) and isinstance(read, list):
        for index, (one, other) in enumerate(zip(given, read)):
            yield from unknown_fields(one, other, f"{at}{index}.")


def against_schema(document):
    kind, version = document["kind"], document["apiVersion"]
    if version in UNPACKAGED or kind == "Kustomization":
        return
    if version in CUSTOM:
        try:
            model = getattr(importlib.import_module(CUSTOM[version]), kind).model_validate(document)
        except ValueError as error:
            yield str(error)
            return
        yield from unknown_fields(document, model.model_dump(mode="json", by_alias=True, exclude_unset=True))
        return
    for kubernetes in KUBERNETES:
        try:
            kubernetes_validate.validate(document, kubernetes, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{kubernetes}: {'.'.join(map(str, error.path))}: {error.message}"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield error.message


def deployment(document):
    pod = document["spec"]["template"]["spec"]
    container = pod["containers"][0]
    wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    if pod["terminationGracePeriodSeconds"] <= wait + DRAIN:
        yield f"terminationGracePeriodSeconds must be more than {wait} + {DRAIN}"
    if str(pod["securityContext"]["runAsUser"]) != UID:
        yield f"runAsUser is not the image's {UID}"
    keyless = found(r"OPEN_PATHS: [^=]+=\s+(\[[^]]+\])", "protocol/src/keys.rs")
    open_paths = [HEALTH, *re.findall(r'"(/[^"]+)"', keyless)]
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"]:
        if container[probe]["httpGet"]["path"] not in open_paths:
            yield f"{probe}: its path needs a key, or isn't there"
    if not any(Path(CACHE).is_relative_to(mount["mountPath"]) for mount in container["volumeMounts"]):
        yield f"nothing is mounted for {CACHE}"
    for variable in container["env"]:
        name = variable["name"].removeprefix("SPIN_VARIABLE_").lower()
        if name not in APPLICATION["variables"]:
            yield f"{variable['name']} is no variable of the application"
    threads = runtime()["nn"]["threads"]
    if container["resources"]["limits"]["cpu"] != str(threads):
        yield f"limits.cpu is not the {threads} threads of configmap.yaml"


def runtime():
    data = yaml.safe_load(source("deploy/kubernetes/configmap.yaml"))["data"]
    return tomllib.loads(data["runtime.toml"])


def configmap(document):
    for name in runtime()["nn"]:
        if name not in SETTINGS:
            yield f"runtime.toml: there is no setting {name}"
    here, there = tomllib.loads(document["data"]["spin.toml"]), tomllib.loads(source("spin.toml"))
    for application in [here, there]:
        for component in application["component"].values():
            for own in ["source", "ai_models", "build"]:
                component.pop(own, None)
    if here != there:
        yield "spin.toml differs from the repository's in more than sources and models"


def manifest(path):
    for document in yaml.safe_load_all(path.read_text()):
        if "kind" not in document:
            continue
        yield from against_schema(document)
        yield from {"Deployment": deployment, "ConfigMap": configmap}.get(document["kind"], lambda _: [])(document)
        if document["kind"] == "Kustomization" and shutil.which("kubectl"):
            made = subprocess.run(["kubectl", "kustomize", path.parent], capture_output=True, text=True)
            if made.returncode:
                yield made.stderr.strip()


def containerfile(path):
    channel = tomllib.loads(source("rust-toolchain.toml"))["toolchain"]["channel"]
    if f"ARG RUST={channel}\n" not in path.read_text():
        yield f"its toolchain is not {channel}"
    hadolint = [Path(sys.executable).with_name("hadolint"), "--no-color", path]
    yield from subprocess.run(hadolint, capture_output=True, text=True).stdout.splitlines()


def unit(path):
    stop = re.search(r"TimeoutStopSec=(\d+)", path.read_text())
    if not stop or int(stop.group(1)) <= DRAIN:
        yield f"TimeoutStopSec must be more than {DRAIN}"


def metrics(path):
    """Metrics that are named must be there, unless the line says that they are absent."""
    for line in path.read_text().splitlines():
        for name in re.findall(r"(?:vllm:|\bspinfer_)\w+", line):
            if name not in METRICS and "absent" not in line:
                yield f"there is no metric {name}"


def main():
    checks = {DEPLOY / "Containerfile": containerfile, DEPLOY / "systemd/spinfer.service": unit}
    checks |= {path: manifest for path in sorted(DEPLOY.rglob("*.yaml"))}
    checks[ROOT / "docs/production.md"] = lambda _: []
    wrong = False
    for path, check in checks.items():
        errors = [*check(path), *metrics(path)]
        wrong |= bool(errors)
        unpackaged = any(f"apiVersion: {version}\n" in path.read_text() for version in UNPACKAGED)
        note = " (no package has the schema of its kind)" if unpackaged else ""
        print(f"{'wrong' if errors else 'ok':5} {path.relative_to(ROOT)}{note}")
        for error in errors:
            print(f"      {error}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
