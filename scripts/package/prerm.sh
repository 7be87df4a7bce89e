#!/bin/sh
# Before the removal of the .deb: stops its services. Sandboxes keep their network.

set -e

if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop cni-agent.service cni-dhcp.socket cni-dhcp.service \
        cni-firewalld.service cni-reload.service >/dev/null || true
fi
