//! The commands that doctor prints, and the tests that run them beside a live pod.

/// Checks that a test runs commands of this form on the state for which doctor prints them.
///
/// # Panics
/// [`FORMS`] does not list the command.
#[track_caller]
pub fn expect_tested(command: &str) {
    let is_listed = FORMS.iter().any(|(form, _)| fits(command, form));
    assert!(
        is_listed,
        "no test runs {command:?} beside a live pod: write one, and list it in commands.rs"
    );
}

/// Returns whether `command` has this form. `*` stands for one word, a last `**` for any words.
fn fits(command: &str, form: &str) -> bool {
    let (begin, is_open) = form
        .strip_suffix(" **")
        .map_or((form, false), |it| (it, true));
    let (words, begin): (Vec<_>, Vec<_>) =
        (command.split(' ').collect(), begin.split(' ').collect());
    let is_long = words.len() == begin.len() || is_open && words.len() > begin.len();
    is_long
        && begin
            .iter()
            .zip(&words)
            .all(|(form, word)| *form == "*" || form == word)
}

/// Forms of commands, each with the file and the name of the test that runs it, or with the reason why
/// no test can. The reason begins with `none: `.
pub const FORMS: &[(&str, &str)] = &[
    // What is only printed.
    (
        "cnitool ps",
        "doctor_harm range_that_is_full_of_live_pods_is_not_collected",
    ),
    ("df -h **", LISTS),
    (
        "ip link show master *",
        "doctor_node full_bridge_is_reported",
    ),
    ("ip -details link show **", LISTS),
    (
        "iptables-legacy-save -c",
        "doctor_commands rules_of_legacy_iptables_are_listed",
    ),
    (
        "ip6tables-legacy-save -c",
        "doctor_commands rules_of_legacy_iptables_are_listed",
    ),
    ("nft list **", LISTS),
    ("nft -a list **", LISTS),
    ("ss -lnp **", LISTS),
    (
        "vi **",
        "doctor_harm two_networks_of_one_bridge_keep_their_addresses",
    ),
    (
        "CNI_COMMAND=VERSION **",
        "doctor_commands plugins_are_replaced",
    ),
    // Files.
    (
        "sed -i **",
        "doctor_outbound gateway_without_a_route_by_it_is_reported",
    ),
    ("mv **", "doctor_commands files_are_moved"),
    ("install -D -m 644 **", "doctor_commands files_are_moved"),
    ("install -m 755 **", "doctor_commands plugins_are_replaced"),
    ("chmod 755 *", "doctor_commands plugins_are_replaced"),
    (
        "mount -o **",
        "doctor_commands file_systems_are_mounted_again",
    ),
    ("printf **", "doctor_commands managers_leave_a_bridge_alone"),
    (
        "UPDATE_CNI_BINARIES=false cnitool install --drop-ins",
        "doctor_commands managers_leave_a_bridge_alone",
    ),
    (
        "networkctl reload",
        "doctor_commands managers_leave_a_bridge_alone",
    ),
    (
        "nmcli general reload",
        "doctor_commands managers_leave_a_bridge_alone",
    ),
    // The kernel.
    (
        "sysctl -w **",
        "doctor_node node_that_stopped_forwarding_is_reported",
    ),
    ("modprobe *", "none: a module belongs to the whole machine"),
    (
        "echo br_netfilter >> **",
        "none: doctor prints it with modprobe br_netfilter",
    ),
    // Links, addresses and routes.
    (
        "ip link set * name *",
        "changed_links cnitool_and_the_agent_name_a_renamed_link",
    ),
    (
        "ip link set * mtu *",
        "doctor_node different_mtus_are_reported",
    ),
    (
        "ip link set * up",
        "doctor_links uplink_that_is_down_or_does_not_forward_is_reported",
    ),
    (
        "ip link set * master *",
        "doctor_links port_that_left_its_bridge_or_is_down_is_reported",
    ),
    (
        "ip link set * type bridge **",
        "doctor_node bridge_whose_frames_bypass_netfilter_is_reported",
    ),
    (
        "ip address add * dev *",
        "doctor_node bridge_that_is_missing_or_down_or_lacks_its_address_is_reported",
    ),
    (
        "ip address delete * dev *",
        "doctor_links bridge_with_the_address_of_another_network_is_reported",
    ),
    (
        "ip route add * dev *",
        "doctor_ptp what_a_pod_lacks_on_the_host_is_reported_and_fixed",
    ),
    (
        "ip route delete **",
        "doctor_links routes_that_drop_packets_of_pods_are_reported",
    ),
    (
        "ip -4 route delete **",
        "doctor_links routes_that_drop_packets_of_pods_are_reported",
    ),
    (
        "ip -6 route delete **",
        "doctor_links routes_that_drop_packets_of_pods_are_reported",
    ),
    (
        "nsenter * ip **",
        "doctor_links sandbox_without_link_address_or_default_route_is_reported",
    ),
    // Rules.
    ("nft insert rule **", OPENED),
    ("iptables -I FORWARD **", OPENED),
    ("ip6tables -I FORWARD **", OPENED),
    ("iptables-legacy -I FORWARD **", OPENED),
    ("ip6tables-legacy -I FORWARD **", OPENED),
    (
        "firewall-cmd **",
        "firewall_firewalld doctor_reports_what_firewalld_drops_and_who_covers_it",
    ),
    (
        "ip xfrm policy update dir in **",
        "doctor_node localhost_that_pods_reach_is_reported",
    ),
    // What deleted pods left.
    (
        "cnitool reload",
        "doctor flushed_rules_are_reported_and_restored",
    ),
    (
        "cnitool reload *",
        "changed_links cnitool_and_the_agent_name_a_renamed_link",
    ),
    (
        "cnitool gc *",
        "doctor_harm pods_that_flannel_attached_are_judged",
    ),
    (
        "cnitool migrate",
        "doctor chains_of_the_reference_are_reported_after_their_pod_is_deleted",
    ),
    (
        "cnitool migrate --remove",
        "doctor chains_of_the_reference_are_reported_after_their_pod_is_deleted",
    ),
    (
        "echo * | CNI_COMMAND=DEL **",
        "doctor elements_without_lease_and_link_are_reported",
    ),
];

const LISTS: &str = "doctor_commands what_only_lists_changes_nothing";
const OPENED: &str = "doctor_firewall forward_chain_that_drops_is_reported_and_opened";
