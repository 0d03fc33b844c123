"""What a kubelet makes of a pod's specification before it starts a container."""

import math
import re


def cpus(quantity):
    """Cores of a quantity such as "2" or "500m", rounded up."""
    text = str(quantity)
    return math.ceil(int(text[:-1]) / 1000) if text.endswith("m") else math.ceil(float(text))


def environment(container, config_maps, pod_name):
    """The variables of a container. `config_maps`: name -> data."""
    values = {}
    for source in container.get("envFrom", []):
        values.update(config_maps[source["configMapRef"]["name"]])
    for variable in container.get("env", []):
        if "value" in variable:
            value = variable["value"]
        elif variable["valueFrom"].get("fieldRef") == {"fieldPath": "metadata.name"}:
            value = pod_name
        elif variable["valueFrom"].get("resourceFieldRef") == {"resource": "limits.cpu"}:
            value = str(cpus(container["resources"]["limits"]["cpu"]))
        else:
            raise NotImplementedError(f"{variable['name']}: {variable['valueFrom']}")
        values[variable["name"]] = value
    return values


def command_line(container, values):
    """The words of a container's command, with $(NAME) filled in. KeyError names a variable that is not there."""
    words = container["command"] + container.get("args", [])
    return [re.sub(r"\$\((\w+)\)", lambda match: values[match.group(1)], word) for word in words]
