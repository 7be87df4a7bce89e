#!/bin/sh
# After the removal of the .deb. A purge disables the services that the operator enabled.

set -e

if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
fi
if [ "$1" = purge ] && command -v deb-systemd-helper >/dev/null; then
    for unit in cni-agent.service cni-dhcp.socket cni-dhcp.service cni-firewalld.service cni-reload.service; do
        deb-systemd-helper purge "$unit" >/dev/null || true
    done
fi
