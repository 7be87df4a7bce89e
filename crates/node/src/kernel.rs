//! Finds missing kernel features: tries in a temporary network namespace what the plugins do.

use anyhow::anyhow;
use netlink::{LinkChange, MacAddress, Request, VethEnd, VethPair};
use netns::Netns;

use super::firewall;

/// A missing kernel feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// Text that names the missing feature, or the kernel's error.
    pub reason: String,
    /// Which plugins need the feature, and what happens without it.
    pub need: Need,
    /// Modules with the feature; empty if it is not known that it is in a module.
    pub modules: Vec<&'static str>,
}

/// What happens if a feature is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// Every ADD fails.
    AddFails,
    /// Only ADDs of pods with a limit fail.
    LimitedAddFails,
    /// ADD succeeds, but only tc limits what pods send, without the second limit in `nf_tables`.
    /// Root in a pod can send packets that bypass tc.
    LimitsEvadable,
    /// ADD succeeds, but all packets of a limited pod wait in one queue, without `fq_codel`.
    OneQueue,
}

/// Which plugins need a kernel feature. A plugin in `plugins` needs the feature if its
/// configuration has one of `keys`. If `keys` is empty, all of `plugins` always need the feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Names of the plugins.
    pub plugins: &'static [&'static str],
    /// Keys of the plugins' configuration.
    pub keys: &'static [&'static str],
    /// What happens if the kernel lacks the feature.
    pub consequence: Consequence,
}

/// Returns the features that plugins may need and the kernel lacks.
///
/// # Errors
/// The kernel refuses to create the temporary namespace or a socket in it, to look up a link, or to
/// create a qdisc, filter or ifb for a reason other than a missing module.
pub(super) fn lacks() -> anyhow::Result<Vec<Lack>> {
    Netns::run_in_new(|| {
        let mut lacks = links()?;
        lacks.extend(limits()?);
        lacks.extend(tables()?);
        Ok(lacks)
    })?
}

/// Tries to make bridges, veth pairs and VLANs in this thread's namespace. Returns the missing
/// features.
fn links() -> anyhow::Result<Vec<Lack>> {
    let connection = netlink::Connection::open()?;
    let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
    let bridge = connection.add_bridge(BRIDGE, mac(1), MTU).map(drop);
    let master = connection.find_link(BRIDGE)?.map(|it| it.index);
    let [host, container] =
        [("host", mac(2)), ("container", mac(3))].map(|(name, mac)| VethEnd { name, mac });
    let pair = VethPair {
        host,
        container,
        mtu: MTU,
        master,
        alias: "a pair to try whether there can be one",
        sandbox: &Netns::own()?,
    };
    let pair = connection.add_veth(&pair, Vec::new()).map(drop);
    let filtering = Request::change_link(BRIDGE, &LinkChange::VlanFiltering);
    let filtering = master.map_or(Ok(()), |_| connection.execute(vec![filtering]));
    let tried = [
        (bridge, "bridges (CONFIG_BRIDGE)", BRIDGES),
        (pair, "veth pairs (CONFIG_VETH)", PAIRS),
        (
            filtering,
            "VLAN filtering of bridges (CONFIG_BRIDGE_VLAN_FILTERING)",
            VLANS,
        ),
    ];
    let lacks = tried.into_iter().filter_map(|(tried, feature, need)| {
        Some(lack(refused(tried.err()?, feature), need, Vec::new()))
    });
    Ok(lacks.collect())
}

/// Returns an error which says that the kernel does not support `feature`. If the kernel refused
/// for another reason, returns `error` itself.
fn refused(error: netlink::Error, feature: &str) -> anyhow::Error {
    if error.is_not_supported() {
        return anyhow!("the kernel does not support {feature}");
    }
    error.into()
}

fn limits() -> anyhow::Result<Vec<Lack>> {
    let modules = tc::missing(&netlink::Connection::open()?)?.into_iter();
    let lacks = modules.map(|module| {
        let reason = anyhow!("the kernel lacks {module}");
        let need = match module {
            tc::module::HTB => SUBNETS,
            tc::module::FQ_CODEL => QUEUES,
            _ => RATES,
        };
        lack(reason, need, vec![module])
    });
    Ok(lacks.collect())
}

/// Tries to make the plugins' tables in `nf_tables`. Returns the missing features.
fn tables() -> anyhow::Result<Vec<Lack>> {
    let connection = nft::Connection::open()?;
    let mut lacks: Vec<Lack> = Vec::new();
    for (plugin, table) in firewall::tables() {
        let need = match table.name {
            portmap::TABLE => PORTS,
            attach::FRAMES_TABLE => FRAMES,
            ::firewall::FRAMES_TABLE => ISOLATION,
            ::firewall::TABLE => PERMISSION,
            _ if BACKSTOP.plugins.contains(&plugin) => BACKSTOP,
            _ => MASQUERADE,
        };
        // bandwidth has two tables, for ports of bridges and for other links. They share one
        // `Need`, so it is listed only once if the kernel supports neither table.
        let is_new = lacks.iter().all(|it| it.need != need);
        if let Err(error) = connection.dry_run(&table)
            && is_new
        {
            let modules = error.modules();
            lacks.push(lack(error, need, modules));
        }
    }
    Ok(lacks)
}

fn lack(error: impl Into<anyhow::Error>, need: Need, modules: Vec<&'static str>) -> Lack {
    Lack {
        reason: super::message(error),
        need,
        modules,
    }
}

const fn of(plugins: &'static [&'static str], keys: &'static [&'static str]) -> Need {
    Need {
        plugins,
        keys,
        consequence: Consequence::AddFails,
    }
}

const BRIDGES: Need = of(&["bridge"], &[]);
const PAIRS: Need = of(&["bridge", "ptp"], &[]);
const VLANS: Need = of(&["bridge"], &["vlan", "vlanTrunk"]);
const FRAMES: Need = of(&["bridge"], &["macspoofchk", "promiscMode"]);
const MASQUERADE: Need = of(&["bridge", "ptp"], &["ipMasq"]);
const PORTS: Need = of(&["portmap"], &[]);
const PERMISSION: Need = of(&["firewall"], &[]);
const ISOLATION: Need = of(&["firewall"], &["ingressPolicy"]);
const RATES: Need = Need {
    consequence: Consequence::LimitedAddFails,
    ..of(&["bandwidth"], &[])
};
const BACKSTOP: Need = Need {
    consequence: Consequence::LimitsEvadable,
    ..RATES
};
const QUEUES: Need = Need {
    consequence: Consequence::OneQueue,
    ..RATES
};
const SUBNETS: Need = Need {
    consequence: Consequence::LimitedAddFails,
    ..of(&["bandwidth"], &["shapedSubnets", "unshapedSubnets"])
};

/// MTU of the links in the temporary namespace, in bytes.
const MTU: u32 = 1500;

/// Name of the bridge in the temporary namespace. No other link has this name, because the
/// namespace is empty.
const BRIDGE: &str = "trial";
