# shellcheck shell=sh
# After the installation of the .rpm.
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
