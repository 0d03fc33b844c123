#!/bin/sh
# Fails unless each file of a model that Baton reads has the SHA-256 that the list has for it.
#   verify-model.sh DIRECTORY LIST     LIST: as `sha256sum` prints it in DIRECTORY
set -eu
list=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
cd "$1"
for file in *.safetensors *.json *.jinja; do
  [ -e "$file" ] || continue
  cut -c 67- "$list" | grep -qxF -e "$file" || { echo "verify-model: $1/$file is not in $2" >&2; exit 1; }
done
sha256sum --check --strict --quiet "$list"
echo "verify-model: $(wc -l <"$list") files of $1 are as listed"
