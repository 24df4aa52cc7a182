#!/usr/bin/env bash
# Makes a compiler's host the parent of its enclave: Nitro's tools, the processors and memory that are
# set aside, the way to KMS, and the image. User data starts it as root, before bootstrap.sh:
#
#     enclave_host.sh --eif S3-URL --memory-mib N --cpus N --region REGION
#
# LUMA_ROOT is put in front of all paths, for tests. Never executed on EC2.
set -euo pipefail

ROOT="${LUMA_ROOT:-}"
PARENT="$ROOT/opt/luma/src/enclave_image/parent"
EIF="" MEMORY="" CPUS="" REGION=""

fail() { echo "luma: $*" >&2; exit 1; }

while (($#)); do
  [[ $# -ge 2 ]] || fail "$1: a value is missing"
  case "$1" in
    --eif) EIF=$2 ;;
    --memory-mib) MEMORY=$2 ;;
    --cpus) CPUS=$2 ;;
    --region) REGION=$2 ;;
    *) fail "$1: unknown option" ;;
  esac
  shift 2
done
[[ "$EIF" == s3://* ]] || fail "--eif '$EIF': expected an S3 URL"
[[ "$MEMORY" =~ ^[1-9][0-9]*$ && "$CPUS" =~ ^[1-9][0-9]*$ ]] || fail "--memory-mib, --cpus: expected numbers"
[[ "$REGION" =~ ^[a-z0-9-]+$ ]] || fail "--region '$REGION': expected a region"

dnf install --quiet --assumeyes aws-nitro-enclaves-cli >&2

mkdir -p "$ROOT/etc/nitro_enclaves" "$ROOT/etc/luma" "$ROOT/etc/systemd/system" "$ROOT/var/lib/luma"
sed -e "s/^memory_mib: .*/memory_mib: $MEMORY/" -e "s/^cpu_count: .*/cpu_count: $CPUS/" \
  "$PARENT/allocator.yaml" >"$ROOT/etc/nitro_enclaves/allocator.yaml"
{
  echo "allowlist:"
  echo "  - {address: kms.$REGION.amazonaws.com, port: 443}"
} >"$ROOT/etc/luma/vsock-proxy.yaml"
for unit in luma-kms-proxy@.service luma-enclave-watch.service luma-enclave-watch.timer; do
  cp "$PARENT/$unit" "$ROOT/etc/systemd/system/$unit"
done
sed -e "s/--cpu-count [0-9]*/--cpu-count $CPUS/" -e "s/--memory [0-9]*/--memory $MEMORY/" \
  "$PARENT/luma-enclave.service" >"$ROOT/etc/systemd/system/luma-enclave.service"

aws s3 cp --only-show-errors "$EIF" "$ROOT/var/lib/luma/luma-enclave.eif"

systemctl daemon-reload
systemctl enable --now nitro-enclaves-allocator.service "luma-kms-proxy@$REGION.service"
systemctl enable --now luma-enclave.service luma-enclave-watch.timer
