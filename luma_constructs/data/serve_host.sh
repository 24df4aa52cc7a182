#!/usr/bin/env bash
# Makes an instance a server: fetches a model from S3 and starts `luma serve` and its watcher. User
# data starts it as root, after the runtime is unpacked to /opt/luma/src:
#
#     serve_host.sh --model S3-PREFIX --name NAME --port N --region REGION --target-group ARN
#                   --service NAME [--secret ARN] [--wheels S3-PREFIX]
#
# LUMA_ROOT is put in front of all paths, for tests. Never executed on EC2.
set -euo pipefail

ROOT="${LUMA_ROOT:-}"
HOME_DIR="$ROOT/opt/luma"
SOURCE="$HOME_DIR/src"
MODEL="" NAME="" PORT="" REGION="" TARGET_GROUP="" SERVICE="" SECRET="" WHEELS=""

fail() { echo "luma: $*" >&2; exit 1; }

while (($#)); do
  [[ $# -ge 2 ]] || fail "$1: a value is missing"
  case "$1" in
    --model) MODEL=$2 ;;
    --name) NAME=$2 ;;
    --port) PORT=$2 ;;
    --region) REGION=$2 ;;
    --target-group) TARGET_GROUP=$2 ;;
    --service) SERVICE=$2 ;;
    --secret) SECRET=$2 ;;
    --wheels) WHEELS=$2 ;;
    *) fail "$1: unknown option" ;;
  esac
  shift 2
done
[[ "$MODEL" == s3://* ]] || fail "--model '$MODEL': expected an S3 URL"
[[ "$PORT" =~ ^[1-9][0-9]*$ ]] || fail "--port '$PORT': expected a number"
for option in NAME REGION TARGET_GROUP SERVICE; do
  [[ -n "${!option}" ]] || fail "${option,,}: missing"
done

# shellcheck source=python_env.sh
source "$SOURCE/node/python_env.sh"
install_packages serve "$WHEELS"

id -u luma >/dev/null 2>&1 ||
  useradd --system --home-dir /var/lib/luma --no-create-home --shell /sbin/nologin luma
mkdir -p "$ROOT/etc/luma" "$ROOT/etc/systemd/system" "$ROOT/var/lib/luma/model"
aws s3 cp --only-show-errors --recursive "$MODEL" "$ROOT/var/lib/luma/model"

# The key that clients must send stays out of user data, templates and the journal.
install -m 0600 /dev/null "$ROOT/etc/luma/serve.env"
if [[ -n "$SECRET" ]]; then
  {
    printf 'LUMA_API_KEY='
    aws secretsmanager get-secret-value --region "$REGION" --secret-id "$SECRET" \
      --query SecretString --output text
  } >>"$ROOT/etc/luma/serve.env"
fi

# SIGTERM: readiness turns to 503, requests in flight get their time, then the back end goes.
cat >"$ROOT/etc/systemd/system/luma-serve.service" <<UNIT_FILE
[Unit]
Description=Luma gateway of $NAME
Wants=network-online.target
After=network-online.target

[Service]
EnvironmentFile=/etc/luma/serve.env
ExecStart=/opt/luma/venv/bin/python -m runtime.cli serve /var/lib/luma/model --host 0.0.0.0 --port $PORT --model-name $NAME
User=luma
StateDirectory=luma
WorkingDirectory=/var/lib/luma
Restart=on-failure
RestartSec=5
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec=90
NoNewPrivileges=yes
PrivateTmp=yes
ProtectHome=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
UNIT_FILE

# Root, since it stops the gateway; it needs the standard library alone.
cat >"$ROOT/etc/systemd/system/luma-serve-watch.service" <<UNIT_FILE
[Unit]
Description=Notices and load of the Luma gateway of $NAME
After=luma-serve.service

[Service]
ExecStart=/opt/luma/venv/bin/python /opt/luma/src/node/serve_watch.py --port $PORT --region $REGION --target-group $TARGET_GROUP --service $SERVICE
Restart=on-failure
RestartSec=5
NoNewPrivileges=yes
ProtectHome=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
UNIT_FILE

systemctl daemon-reload
systemctl enable --now luma-serve.service luma-serve-watch.service
