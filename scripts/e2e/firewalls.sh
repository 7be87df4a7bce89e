# shellcheck shell=bash
# Tests the plugin firewall behind programs that drop forwarded packets: Docker's rules, ufw,
# firewalld and legacy iptables. Sourced by scripts/e2e.sh.

readonly FENCED=10.6.0.9
readonly FENCED6=fd00:6::9

try_firewalls() {
    outside ip route add 10.6.0.0/24 via 192.0.2.1
    outside ip route add fd00:6::/64 via 2001:db8::1
    local program
    # The table of legacy iptables stays until the end of this network, so it is the last.
    for program in docker ufw firewalld legacy; do
        under "firewall behind $program"
        "start_$program"
        try_without_plugin "$program"
        try_with_plugin "$program"
        try_without_plugin "$program" " once more"
        "stop_$program"
    done
    outside ip route delete 10.6.0.0/24
    outside ip route delete fd00:6::/64
}

# try_without_plugin PROGRAM [WHEN]
try_without_plugin() {
    write_chain
    run_netns pod
    check "ADD without the plugin${2:-}" fenced_add
    check "the host reaches the container${2:-}" answers pod tcp "$FENCED:80"
    check "the container reaches no other host${2:-}" fenced_reaches_none
    if [[ $1 == firewalld ]]; then
        check "it accepts what portmap translates${2:-}" fenced_is_reached
    else
        check "another host reaches none of its ports${2:-}" \
            dropped outside 'tcp 192.0.2.1:8060' 'udp 192.0.2.1:8061' 'tcp [2001:db8::1]:8060'
    fi
    check "DEL without the plugin${2:-}" cnitool del pods /run/netns/pod
    end_netns pod
}

# try_with_plugin PROGRAM
try_with_plugin() {
    write_chain '{"type": "firewall"}'
    run_netns pod
    check "ADD with the plugin" fenced_add
    try_permitted "with the plugin"
    check "another host does not reach the container's address" \
        dropped outside "tcp $FENCED:80" "tcp [$FENCED6]:80"
    check "CHECK" cnitool check pods /run/netns/pod
    check "rules name the container" fenced_is_named
    check "iptables-save | iptables-restore" resave iptables ip6tables
    [[ $1 != legacy ]] || check "the same of legacy iptables" resave iptables-legacy ip6tables-legacy
    # nft lists ufw's rules on ICMPv6 as "xt match icmp6", which it does not read.
    [[ $1 == ufw ]] || check "nft list ruleset | nft -f -" resave_nft
    try_permitted "with restored rules"
    check "it reloads its rules, then cnitool reload" "reload_$1"
    try_permitted "after both reloads"
    check "DEL" cnitool del pods /run/netns/pod
    end_netns pod
    check "nothing is left" nothing_left
    check "no rule names the container" no_fenced_is_named
}

# try_permitted WHEN
try_permitted() {
    check "the container reaches another host, $1" fenced_reaches
    check "another host reaches its ports, $1" fenced_is_reached
}

fenced_reaches() {
    answers "$(hostname)" tcp 192.0.2.2:80 in_netns pod
    answers "$(hostname)" tcp '[2001:db8::2]:80' in_netns pod
}

fenced_reaches_none() {
    dropped pod 'tcp 192.0.2.2:80' 'tcp [2001:db8::2]:80'
}

fenced_is_reached() {
    answers pod tcp 192.0.2.1:8060 outside
    answers pod udp 192.0.2.1:8061 outside
    answers pod tcp '[2001:db8::1]:8060' outside
}

# dropped NETNS QUESTION...: asks all at once, since an answer that does not come takes two seconds.
dropped() {
    local question questions=()
    for question in "${@:2}"; do
        refused "${question% *}" "${question#* }" in_netns "$1" &
        questions+=($!)
    done
    for question in "${questions[@]}"; do
        wait "$question"
    done
}

# write_chain [PLUGIN]: writes a list of bridge and portmap, and this plugin behind them.
write_chain() {
    rm -f /etc/cni/net.d/*
    cat >/etc/cni/net.d/10-pods.conflist <<JSON
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
 {"type": "bridge", "bridge": "cni6", "isDefaultGateway": true, "ipMasq": true, "capabilities": {"ips": true},
  "ipam": {"type": "static"}},
 {"type": "portmap", "capabilities": {"portMappings": true}} ${1:+, $1}]}
JSON
}

fenced_add() {
    CAP_ARGS='{"ips": ["'$FENCED'/24", "'$FENCED6'/64"], "portMappings": [
        {"hostPort": 8060, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 8061, "containerPort": 53, "protocol": "udp"}]}' cnitool add pods /run/netns/pod
}

fenced_is_named() {
    local rules
    rules=$(nft list ruleset && iptables-save && ip6tables-save && legacy_rules && firewalld_sources)
    grep -F -e "$FENCED" -e "$FENCED6" <<<"$rules"
}

no_fenced_is_named() {
    ! fenced_is_named
}

resave_nft() {
    local rules
    rules=$(nft list ruleset)
    nft --file - <<<"flush ruleset
$rules"
}

# resave IPTABLES...
resave() {
    local iptables rules
    for iptables in "$@"; do
        rules=$("$iptables-save")
        "$iptables-restore" <<<"$rules"
    done
}

# Docker's own chains, with the policy that it sets.
start_docker() {
    local iptables
    for iptables in iptables ip6tables; do
        "$iptables" --policy FORWARD DROP
        "$iptables" --new-chain DOCKER-USER
        "$iptables" --append FORWARD --jump DOCKER-USER
        "$iptables" --append FORWARD --out-interface docker0 --match conntrack \
            --ctstate RELATED,ESTABLISHED --jump ACCEPT
    done
}

# A restarted Docker moves its jump to the front.
reload_docker() {
    local iptables
    for iptables in iptables ip6tables; do
        "$iptables" --delete FORWARD --jump DOCKER-USER
        "$iptables" --insert FORWARD --jump DOCKER-USER
    done
    fenced_reaches
    cnitool reload
}

stop_docker() {
    clear_network
}

start_ufw() {
    check "ufw enable" ufw --force enable
}

reload_ufw() {
    ufw reload
    fenced_reaches
    cnitool reload
}

stop_ufw() {
    check "ufw disable" ufw disable
    clear_network
}

# The default zone forwards nothing between its links, as before firewalld 1.0.
start_firewalld() {
    mount -t tmpfs tmpfs /var/log
    mkdir -p /run/dbus /etc/firewalld/zones
    echo '<zone/>' >/etc/firewalld/zones/public.xml
    dbus-daemon --system --nofork --nopidfile >"$ROOM/dbus.log" 2>&1 &
    bus_process=$!
    within 5 test -S /run/dbus/system_bus_socket
    firewalld --nofork --nopid >"$ROOM/firewalld.log" 2>&1 &
    firewalld_process=$!
    check "firewalld runs" within 60 firewall-cmd --state
}

# A reload forgets the container's addresses.
reload_firewalld() {
    firewall-cmd --reload
    fenced_reaches_none
    cnitool reload
}

firewalld_sources() {
    [[ ! -S /run/dbus/system_bus_socket ]] || firewall-cmd --zone=trusted --list-sources
}

stop_firewalld() {
    kill "$firewalld_process"
    wait "$firewalld_process" || true
    kill "$bus_process"
    wait "$bus_process" || true
    rm -f /run/dbus/system_bus_socket
    clear_network
}

start_legacy() {
    iptables-legacy --policy FORWARD DROP
    ip6tables-legacy --policy FORWARD DROP
}

# Lists rules of legacy iptables without creating its tables.
legacy_rules() {
    ! grep -q . /proc/net/ip_tables_names || iptables-legacy-save
    ! grep -q . /proc/net/ip6_tables_names || ip6tables-legacy-save
}

reload_legacy() {
    iptables-legacy --flush FORWARD
    ip6tables-legacy --flush FORWARD
    fenced_reaches_none
    cnitool reload
}

stop_legacy() {
    local iptables
    for iptables in iptables-legacy ip6tables-legacy; do
        "$iptables" --policy FORWARD ACCEPT
        "$iptables" --flush
        "$iptables" --delete-chain
    done
    clear_network
}
