"""Writes schemas that kubeconform reads: schemas.py KUBERNETES-VERSION CRD FOLDER.

Kubernetes' own come from the package kubernetes-validate, in which they have an $id that no file has.
The third argument is a CustomResourceDefinition in YAML.
"""

import importlib.util
import json
import pathlib
import sys

import yaml

version, crd, folder = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
folder.mkdir(parents=True, exist_ok=True)
package = pathlib.Path(importlib.util.find_spec("kubernetes_validate").origin).parent
for path in (package / "kubernetes-json-schema" / f"v{version}-local-strict").glob("*.json"):
    text = path.read_text().replace('"/api/_definitions.json#', '"_definitions.json#')
    schema = json.loads(text)
    schema.pop("$id", None)
    (folder / path.name).write_text(json.dumps(schema))


def closed(schema):
    """Lets an object have no properties but those that it lists."""
    if isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for inner in schema.values():
            closed(inner)
    elif isinstance(schema, list):
        for inner in schema:
            closed(inner)
    return schema


definition = yaml.safe_load(crd.read_text())["spec"]
group, kind = definition["group"].split(".")[0], definition["names"]["kind"].lower()
for v in definition["versions"]:
    schema = v["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object"}
    (folder / f"{kind}-{group}-{v['name']}.json").write_text(json.dumps(closed(schema)))
