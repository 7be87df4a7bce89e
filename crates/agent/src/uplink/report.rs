//! Writes lines about changes of uplinks to standard error.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::note;
use upkeep::{Uplink, Uplinks};

/// Reports on standard error which uplinks differ between `before` and `now`, and in which networks
/// more pods have an outdated MTU. Without `before`, reports only the pods.
pub(super) fn changes(before: Option<&Uplinks>, now: &Uplinks) {
    lines(before, now).iter().for_each(note);
}

fn lines(before: Option<&Uplinks>, now: &Uplinks) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(before) = before {
        let gone = before.links.iter();
        let gone = gone.filter(|(index, _)| !now.links.contains_key(index));
        lines.extend(gone.map(|(_, it)| format!("uplink: {} has no default route", it.name)));
        for (index, uplink) in &now.links {
            lines.extend(match before.links.get(index) {
                Some(before) => differences(before, uplink),
                None => vec![format!("uplink: {} has a default route", uplink.name)],
            });
        }
    }
    for (network, count) in &now.other_mtu {
        let earlier = before.and_then(|it| it.other_mtu.get(network));
        if earlier.is_none_or(|it| it < count) {
            lines.push(format!(
                "uplink: {count} pods of network {network} have another MTU than a new pod would \
                 get; a pod gets the new MTU when it is recreated"
            ));
        }
    }
    lines
}

fn differences(before: &Uplink, now: &Uplink) -> Vec<String> {
    let name = &now.name;
    let mut lines = Vec::new();
    if before.mtu != now.mtu {
        let (before, now) = (before.mtu, now.mtu);
        lines.push(format!("uplink: the MTU of {name} is {now}, not {before}"));
    }
    if before.addresses != now.addresses {
        lines.push(format!(
            "uplink: the addresses of {name} are {}, not {}; new connections of masqueraded pods \
             have the new address, and the kernel ends those with a removed one",
            list(&now.addresses),
            list(&before.addresses)
        ));
    }
    lines
}

fn list(addresses: &BTreeSet<IpAddr>) -> String {
    if addresses.is_empty() {
        return "none".to_owned();
    }
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    addresses.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mtu: u32, address: &str, pods: usize) -> Uplinks {
        let uplink = Uplink {
            name: "eth0".to_owned(),
            mtu,
            addresses: BTreeSet::from([address.parse().unwrap()]),
        };
        let pods = (pods > 0).then(|| ("pods".parse().unwrap(), pods));
        Uplinks {
            links: [(2, uplink)].into(),
            other_mtu: pods.into_iter().collect(),
        }
    }

    #[test]
    fn each_change_gives_one_line() {
        let before = read(1500, "192.0.2.1", 0);
        assert!(lines(None, &before).is_empty());
        assert!(lines(Some(&before), &before).is_empty());
        let now = read(1400, "192.0.2.9", 3);
        let said = lines(Some(&before), &now);
        assert_eq!(said.len(), 3, "{said:#?}");
        assert_eq!(said[0], "uplink: the MTU of eth0 is 1400, not 1500");
        assert!(said[1].contains("192.0.2.9, not 192.0.2.1"));
        assert!(said[2].starts_with("uplink: 3 pods of network pods"));
        assert!(lines(Some(&now), &read(1400, "192.0.2.9", 2)).is_empty());
        let gone = lines(Some(&now), &Uplinks::default());
        assert_eq!(gone, ["uplink: eth0 has no default route"]);
    }
}
