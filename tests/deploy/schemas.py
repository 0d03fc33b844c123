"""Strict schemas of Kubernetes' resources, of KEDA's ScaledObject, and of the Prometheus operator's PodMonitor and PrometheusRule;
and of the Gateway API and Envoy Gateway those fields that deploy/k8s has, as no Python package has their schemas."""

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


def _object(required, **properties):
    return {"type": "object", "properties": properties, "required": required.split()}


def _list(items):
    return {"type": "array", "items": items, "minItems": 1, "maxItems": 16}


TEXT, PORT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1, "maximum": 65535}
HOST = {"type": "string", "pattern": r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"}
DURATION = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
METADATA = _object("name", name=TEXT, namespace=TEXT, labels={"type": "object"}, annotations={"type": "object"})


def _resource(spec):
    return _object("apiVersion kind metadata spec", apiVersion=TEXT, kind=TEXT, metadata=METADATA, spec=spec)


def _route(**more):
    rule = _object("", backendRefs=_list(_object("name", name=TEXT, port=PORT)), **more)
    return _resource(_object("parentRefs rules", parentRefs=_list(_object("name", name=TEXT, sectionName=TEXT)),
                             hostnames=_list(HOST), rules=_list(rule)))


PARTS = {
    "gateway.networking.k8s.io/v1/Gateway": _resource(_object("gatewayClassName listeners", gatewayClassName=TEXT, listeners=_list(
        _object("name port protocol", name=TEXT, hostname=HOST, port=PORT, protocol={"enum": ["HTTP", "HTTPS", "TLS"]},
                tls=_object("certificateRefs", certificateRefs=_list(_object("name", name=TEXT))))))),
    "gateway.networking.k8s.io/v1/HTTPRoute": _route(timeouts=_object("", request=DURATION, backendRequest=DURATION)),
    "gateway.networking.k8s.io/v1/GRPCRoute": _route(),
    "gateway.envoyproxy.io/v1alpha1/BackendTrafficPolicy": _resource(_object(
        "targetRefs", targetRefs=_list(_object("group kind name", group=TEXT, kind=TEXT, name=TEXT)),
        timeout=_object("", http=_object("", requestTimeout=DURATION)))),
}
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
    part = PARTS.get(f"{api_version}/{kind}")
    if part is not None:
        return jsonschema.Draft202012Validator(_strict(part))
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
