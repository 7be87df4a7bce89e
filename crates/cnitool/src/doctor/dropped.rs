//! Reports packets that did not pass a copy of the node's firewall rules: which rule stopped them,
//! and whether they would pass if the network's list had the plugin `firewall`.

use itertools::Itertools as _;
use netlink::{IpVersion, network_of};
use nft::{EndVerdict, Ended, Protocol};
use node::{Node, Outcome, PacketPath, Probe, Stage, Trial};

use super::finding::{Finding, Level, quoted};
use super::stages::place;

/// Returns one finding for each rule or policy that stopped packets in the copy of the node's
/// rules, and one for packets that were lost without such a rule. If no packets could be sent,
/// returns one warning.
pub fn dropped(node: &Node, probe: &Probe) -> Vec<Finding> {
    let place = place(&probe.stage);
    let trial = match &probe.trial {
        Ok(trial) => trial,
        Err(reason) => {
            let message = format!("packets of pods {place} could not be tried: {reason}");
            let impact = "It is unknown whether the node's rules accept them.";
            return vec![Finding::warning(message).impact(impact)];
        }
    };
    let mut ends: Vec<(&Outcome, Vec<PacketPath>)> = Vec::new();
    for (path, outcome) in trial.outcomes.iter().filter(|it| it.1 != Outcome::Passed) {
        match ends.iter_mut().find(|it| it.0 == outcome) {
            Some((_, paths)) => paths.push(*path),
            None => ends.push((outcome, vec![*path])),
        }
    }
    let findings = ends.iter().map(|(outcome, paths)| {
        let words = paths.iter().map(|it| words(*it, &place)).join(", ");
        let stage = &probe.stage;
        let version = IpVersion::of(stage.pod.ip());
        let packets = format!("new {version} packets {words}, are");
        let group = SameOutcome {
            node,
            stage,
            trial,
            paths,
        };
        let finding = group.finding(outcome, &packets);
        let is_needed = |it: &PacketPath| {
            let tcp = PacketPath::ToElsewhere(Protocol::Tcp);
            *it == tcp || matches!(it, PacketPath::ToHostPort(_))
        };
        if paths.iter().any(is_needed) && !group.is_uncertain(outcome) {
            return finding;
        }
        let level = Level::Warning;
        Finding { level, ..finding }
    });
    findings.collect()
}

fn words(path: PacketPath, place: &str) -> String {
    let name = |it: Protocol| it.to_string().to_uppercase();
    match path {
        PacketPath::ToElsewhere(it) => {
            format!("from pods {place} to other hosts ({})", name(it))
        }
        PacketPath::ToNode(it, port) => {
            let protocol = name(it);
            format!("from pods {place} to port {port} of the node ({protocol})")
        }
        PacketPath::FromNode => format!("from the node to pods {place}"),
        PacketPath::ToHostPort(port) => format!("from other hosts to hostPort {port}"),
    }
}

/// The paths on which packets had the same outcome: the same rule or policy stopped them, or they
/// were lost.
struct SameOutcome<'a> {
    node: &'a Node,
    stage: &'a Stage,
    trial: &'a Trial,
    paths: &'a [PacketPath],
}

impl SameOutcome<'_> {
    fn finding(&self, outcome: &Outcome, packets: &str) -> Finding {
        match outcome {
            Outcome::Ended(ended) => {
                let verdict = match ended.verdict {
                    EndVerdict::Drop => "dropped",
                    EndVerdict::Queue => "queued to a program",
                };
                let by = match ended.place.handle {
                    0 => "its policy".to_owned(),
                    handle => format!("the rule with handle {handle}"),
                };
                let message = format!("{packets} {verdict} in {}, by {by}", ended.place);
                let finding = Finding::problem(message);
                if is_of_firewalld(ended) {
                    return self.of_firewalld(finding);
                }
                finding.impact(self.impact()).fix(self.fix(ended))
            }
            Outcome::Lost(Some(rule)) => {
                let program = rule.split(' ').next().unwrap_or_default();
                let finding = Finding::problem(format!("{packets} dropped by {rule}"));
                let is_forward = rule.contains("FORWARD") && rule.contains("-t filter:");
                finding.impact(self.impact()).fix(if is_forward {
                    opened(program, self.stage)
                } else {
                    format!("{program}-save -c")
                })
            }
            Outcome::Lost(None) | Outcome::Passed => {
                let message = format!("{packets} lost, and no rule was seen that drops them");
                let impact = "In a copy of all rules they are redirected, or a table that is not copied drops them.";
                let finding = Finding::problem(message).impact(impact);
                finding.fix("nft list ruleset")
            }
        }
    }

    /// Returns whether the packets may pass on the node although they did not pass the copy of its
    /// rules. There are three such cases:
    ///
    /// - A rule passes the packets to a program in user space, which decides.
    /// - No rule was seen to drop the packets.
    /// - firewalld's rules dropped them, and the ADD of `firewall` that will add the pod to a zone
    ///   of firewalld has not run yet. In the copy, the pod is in no zone.
    fn is_uncertain(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Ended(ended) => {
                ended.verdict == EndVerdict::Queue
                    || (is_of_firewalld(ended) && self.asks_firewalld() && !self.is_permitted_pod())
            }
            outcome => *outcome == Outcome::Lost(None),
        }
    }

    fn impact(&self) -> String {
        let mut paths = self.paths.iter();
        let helps = paths.all(|it| self.trial.permitted.contains(it));
        match &self.stage.permission {
            None if helps => format!("{COPY} {COVERED}"),
            None => format!("{COPY} {NOT_COVERED}"),
            Some(_) => format!("{COPY} {IN_SPITE}"),
        }
    }

    /// Adds impact and fix to a finding about packets that firewalld's rules drop in the copy of
    /// the node's rules. There are three cases:
    ///
    /// - An ADD added the pod to a zone of firewalld: the table of the plugin `firewall` has the
    ///   pod's address. A reload of firewalld removed the pod from the zone.
    /// - The network uses firewalld, but no ADD ran for this pod. ADD adds new pods to a zone of
    ///   the node's firewalld, which the copy cannot show.
    /// - The network does not use firewalld.
    fn of_firewalld(&self, finding: Finding) -> Finding {
        if self.asks_firewalld() && self.is_permitted_pod() {
            let impact = "A reload of firewalld removed the pods' addresses from its zone.";
            return finding.impact(impact).fix("cnitool reload");
        }
        if self.asks_firewalld() {
            let impact = "ADD of `firewall` adds each new pod to a zone of firewalld, which a copy of the rules cannot show.";
            return finding
                .impact(impact)
                .fix("firewall-cmd --get-active-zones");
        }
        let impact = "The plugin `firewall` in the network's list adds each new pod to firewalld's zone `trusted`, unless `backend` is iptables or nftables.";
        let pods = network_of(self.stage.pod);
        let command = "firewall-cmd --zone=trusted --add-source";
        finding.impact(impact).fix(format!("{command}={pods}"))
    }

    /// Returns whether the network's list has the plugin `firewall`, and `backend` lets its ADD
    /// add pods to a zone of firewalld.
    fn asks_firewalld(&self) -> bool {
        let permission = self.stage.permission.as_ref();
        permission.is_some_and(firewall::Config::asks_firewalld)
    }

    /// Returns whether the `nf_tables` table of the plugin `firewall` has the pod's address. If so,
    /// an ADD of the plugin ran for the pod.
    fn is_permitted_pod(&self) -> bool {
        let mut elements = self.node.firewall.elements.iter();
        let pod = Some(self.stage.pod.ip());
        elements.any(|it| it.table == firewall::TABLE && it.address == pod)
    }

    /// Returns commands for packets that were stopped in a chain of `nf_tables`. If this chain is a
    /// base chain of the forward hook, the commands insert rules there that accept packets of the
    /// pods. For any other chain, the command only lists the chain.
    fn fix(&self, Ended { place, .. }: &Ended) -> String {
        let (family, stage) = (place.family(), self.stage);
        let chains = self.node.firewall.chains.iter();
        let mut chains = chains.filter(|it| it.is_forward);
        let is_forward = chains.any(|it| {
            (it.family.name(), &it.table, &it.name) == (family, &place.table, &place.chain)
        });
        let is_filter = is_forward && place.table == "filter" && place.chain == "FORWARD";
        let [table, chain] = [&place.table, &place.chain].map(quoted);
        match family {
            "ip" if is_filter => opened("iptables", stage),
            "ip6" if is_filter => opened("ip6tables", stage),
            _ if is_forward => conditions(stage)
                .map(|[_, it]| format!("nft insert rule {family} {table} {chain} {it} accept"))
                .join("\n"),
            _ => format!("nft -a list chain {family} {table} {chain}"),
        }
    }
}

fn is_of_firewalld(Ended { place, .. }: &Ended) -> bool {
    place.table == "firewalld"
}

fn opened(program: &str, stage: &Stage) -> String {
    let accept = |[it, _]: [String; 2]| format!("{program} -I FORWARD {it} -j ACCEPT");
    conditions(stage).map(accept).join("\n")
}

/// Returns the conditions of the two rules that a fix inserts. The first rule matches packets from
/// pods, the second rule matches packets to pods. Each condition is in two syntaxes: first
/// iptables, then nft.
fn conditions(stage: &Stage) -> [[String; 2]; 2] {
    if stage.is_routed() {
        let pods = network_of(stage.pod);
        let family = if pods.is_ipv4() { "ip" } else { "ip6" };
        return [("-s", "saddr"), ("-d", "daddr")]
            .map(|(flag, word)| [format!("{flag} {pods}"), format!("{family} {word} {pods}")]);
    }
    let name = quoted(&stage.access.name);
    [("-i", "iifname"), ("-o", "oifname")]
        .map(|(flag, word)| [format!("{flag} {name}"), format!("{word} {name}")])
}

pub const COPY: &str = "They were sent through a copy of all rules.";

const COVERED: &str =
    "The plugin `firewall` in the network's list lets them pass, as a second copy showed.";

const NOT_COVERED: &str = "The plugin `firewall` does not let them pass, as a second copy showed.";

const IN_SPITE: &str = "The permission of the network's plugin `firewall` does not cover it.";
