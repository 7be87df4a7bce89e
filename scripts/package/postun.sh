# shellcheck shell=sh
# After an upgrade of the .rpm: restarts the daemons that run.
if [ "$1" -ge 1 ] && [ -d /run/systemd/system ]; then
    systemctl try-restart cni-agent.service cni-dhcp.service cni-firewalld.service || true
fi
