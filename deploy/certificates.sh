#!/bin/sh
# Certificates for a federation's server, and a key for each device that is named.
#   deploy/certificates.sh FOLDER "HOST [HOST...]" [DEVICE...]
# FOLDER/ca.crt goes to every device; FOLDER/server.* stay on the server; FOLDER/keys/DEVICE goes to that device alone,
# FOLDER/keys/DEVICE.pub is registered: flwr supernode register FOLDER/keys/DEVICE.pub
set -eu
folder=$1
hosts=$2
shift 2
# shellcheck disable=SC2086 # one --host for each word
federec federation certificates "$folder" $(printf -- '--host %s ' $hosts)
for device in "$@"; do
    federec federation node-key "$folder/keys/$device"
done
