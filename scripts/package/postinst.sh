#!/bin/sh
# After the installation of the .deb. An upgrade restarts the daemons that run.

set -e

[ "$1" = configure ] || exit 0
if command -v deb-systemd-helper >/dev/null; then
    # Lets a purge find the links of units that the operator enables.
    for unit in cni-agent.service cni-dhcp.socket cni-dhcp.service cni-firewalld.service cni-reload.service; do
        deb-systemd-helper update-state "$unit" >/dev/null || true
    done
fi
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
    if [ -n "$2" ]; then
        deb-systemd-invoke try-restart cni-agent.service cni-dhcp.service cni-firewalld.service >/dev/null || true
    fi
fi
