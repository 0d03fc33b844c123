"""Strict schemas of Kubernetes' resources, of KEDA's ScaledObject, and of the Prometheus operator's PodMonitor and PrometheusRule."""

import functools
import re

import jsonschema
import kubernetes_validate.utils
import referencing
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule

VERSIONS = ("1.27", "1.32", "1.37")
CUSTOM = {"keda.sh/v1alpha1/ScaledObject": ScaledObject, "monitoring.coreos.com/v1/PodMonitor": PodMonitor,
          "monitoring.coreos.com/v1/PrometheusRule": PrometheusRule}
# The metadata of a KEDA trigger is a map for the schema. These are the ones of its type "prometheus".
TRIGGER_KEYS = {"serverAddress", "query", "threshold", "activationThreshold", "namespace", "ignoreNullValues",
                "queryParameters", "unsafeSsl", "timeout", "authModes", "customHeaders"}

_contents = functools.cache(kubernetes_validate.utils.schema_contents)


def _strict(schema):
    """The schema with no fields but those that it names."""
    if isinstance(schema, dict):
        schema = {key: _strict(value) for key, value in schema.items()}
        if "properties" in schema:
            schema["additionalProperties"] = False
        return schema
    return [_strict(value) for value in schema] if isinstance(schema, list) else schema


@functools.cache
def _validator(version, api_version, kind):
    custom = CUSTOM.get(f"{api_version}/{kind}")
    if custom is not None:
        return jsonschema.Draft202012Validator(_strict(custom.model_json_schema()))
    exact = version + ".0"  # as the package's folders are named
    folder = f"kubernetes-json-schema/v{exact}-local-strict"
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = _contents(f"{folder}/{kind.lower()}-{group}.json", exact)
    definitions = _contents(f"{folder}/_definitions.json", exact)
    registry = referencing.Resource.from_contents(definitions) @ referencing.Registry()
    return jsonschema.Draft202012Validator(schema, registry=registry)


def breaches(resource, versions=VERSIONS):
    """What the schemas of these versions of Kubernetes do not allow."""
    name = f"{resource['kind']} {resource['metadata']['name']}"
    for version in versions:
        validator = _validator(version, resource["apiVersion"], resource["kind"])
        for error in validator.iter_errors(resource):
            yield f"{name}: {'.'.join(map(str, error.absolute_path))}: {error.message[:300]} ({version})"
    for trigger in resource.get("spec", {}).get("triggers", []):
        for key in sorted(set(trigger.get("metadata", {})) - TRIGGER_KEYS):
            yield f"{name}: {key} is no field of a trigger of type prometheus"
