#!/usr/bin/env bash
# Turns a fresh instance into a Luma node. User data unpacks the runtime to /opt/luma/src and starts
# this script as root:
#
#     bootstrap.sh --deployment NAME --fleet NAME --family FAMILY --region REGION
#                  [--wheels S3-PREFIX] [--env NAME=VALUE]... [--external CHIP]
#
# --family chooses node/requirements-FAMILY.txt. --wheels names a folder of wheels in S3, for VPCs
# without a way to a package index: then nothing is fetched from anywhere else. LUMA_ROOT is put in
# front of all paths, for tests. --external is for a host outside EC2: it then gets a service that
# tells the node who it is, in place of an instance's metadata.
#
# Whatever fails ends the script, and user data then ends the instance: one that could not be set up
# must not cost money while it waits for work that it cannot take.
set -euo pipefail

ROOT="${LUMA_ROOT:-}"
HOME_DIR="$ROOT/opt/luma"
SOURCE="$HOME_DIR/src"
UNIT=luma-node
DEPLOYMENT="" FLEET="" FAMILY="" REGION="" WHEELS="" EXTERNAL=""
ENVIRONMENT=()

say() { echo "luma: $*" >&2; }
fail() { say "$*"; exit 1; }

while (($#)); do
  [[ $# -ge 2 ]] || fail "$1: a value is missing"
  case "$1" in
    --deployment) DEPLOYMENT=$2 ;;
    --fleet) FLEET=$2 ;;
    --family) FAMILY=$2 ;;
    --region) REGION=$2 ;;
    --wheels) WHEELS=$2 ;;
    --external) EXTERNAL=$2 ;;
    --env) ENVIRONMENT+=("$2") ;;
    *) fail "$1: unknown option" ;;
  esac
  shift 2
done
for name in DEPLOYMENT FLEET FAMILY REGION; do
  [[ -n "${!name}" ]] || fail "--${name,,}: missing"
done

# shellcheck source=python_env.sh
source "$SOURCE/node/python_env.sh"
install_packages "$FAMILY" "$WHEELS"

# The base image for Trainium and Inferentia has the driver and the vendor's repository, and may lack
# the library that loads programs. Never executed on such a chip.
if [[ "$FAMILY" == neuron && ! -e "$ROOT/opt/aws/neuron/lib/libnrt.so" ]]; then
  dnf install --quiet --assumeyes aws-neuronx-runtime-lib >&2
fi

mkdir -p "$ROOT/etc/luma" "$ROOT/etc/systemd/system"
SERVICES=("$UNIT.service")
if [[ -n "$EXTERNAL" ]]; then
  ENVIRONMENT+=("AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:9254")
  SERVICES=(luma-host-identity.service "${SERVICES[@]}")
  cat >"$ROOT/etc/systemd/system/luma-host-identity.service" <<UNIT_FILE
[Unit]
Description=Who this host is, for its Luma node
Wants=network-online.target
After=network-online.target
Before=$UNIT.service

[Service]
ExecStart=/opt/luma/venv/bin/python -I /opt/luma/src/node/host_identity.py --region $REGION --chip $EXTERNAL
User=luma
Restart=always
RestartSec=5
NoNewPrivileges=yes
PrivateTmp=yes
ProtectHome=yes
ProtectSystem=strict

[Install]
WantedBy=multi-user.target
UNIT_FILE
fi
{
  echo "LUMA_STACK=$DEPLOYMENT"
  echo "LUMA_FLEET=$FLEET"
  echo "AWS_REGION=$REGION"
  for line in ${ENVIRONMENT[@]+"${ENVIRONMENT[@]}"}; do echo "$line"; done
} >"$ROOT/etc/luma/agent.env"
chmod 0644 "$ROOT/etc/luma/agent.env"

# SIGTERM goes to the daemon alone, which has its island leave; what is left after 110 s, before a
# spot instance's two minutes end, is killed. A daemon that ended well was told to: it stays down.
cat >"$ROOT/etc/systemd/system/$UNIT.service" <<UNIT_FILE
[Unit]
Description=Luma node of fleet $FLEET
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=600
StartLimitBurst=10

[Service]
EnvironmentFile=/etc/luma/agent.env
ExecStart=/opt/luma/venv/bin/python -m runtime.agent.node
User=luma
StateDirectory=luma
WorkingDirectory=/var/lib/luma
Restart=on-failure
RestartSec=5
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec=110
NoNewPrivileges=yes
PrivateTmp=yes
ProtectHome=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
UNIT_FILE

id -u luma >/dev/null 2>&1 ||
  useradd --system --home-dir /var/lib/luma --no-create-home --shell /sbin/nologin luma
systemctl daemon-reload
systemctl enable --now "${SERVICES[@]}"
say "node of fleet $FLEET is up"
