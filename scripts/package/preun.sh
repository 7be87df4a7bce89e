# shellcheck shell=sh
# Before the removal of the .rpm, but not before an upgrade: stops and disables its services. Sandboxes
# keep their network.
if [ "$1" -eq 0 ] && command -v systemctl >/dev/null; then
    systemctl --no-reload disable --now cni-agent.service cni-dhcp.socket cni-dhcp.service \
        cni-firewalld.service cni-reload.service >/dev/null 2>&1 || true
fi
