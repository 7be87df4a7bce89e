//! Settings of an interface: the desired ones, the current ones, or those before ADD.

use netlink::{Connection, Error, Link, LinkChange, MacAddress, Multicast, Request};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Settings of an interface. `None` leaves a setting unchanged. The Go plugin writes its records
/// with the same keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Ethernet address.
    #[serde(serialize_with = "print_mac", deserialize_with = "read_mac")]
    pub mac: Option<MacAddress>,
    /// Promiscuous mode.
    pub promisc: Option<bool>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Whether the interface receives all multicast packets.
    pub allmulti: Option<bool>,
    /// Length of the transmit queue in packets.
    #[serde(rename = "txQLen")]
    pub tx_q_len: Option<u32>,
}

impl Settings {
    pub(crate) fn of(link: &Link) -> Self {
        Self {
            mac: link.mac,
            promisc: Some(link.is_promiscuous),
            mtu: Some(link.mtu),
            allmulti: Some(link.multicast == Multicast::All),
            tx_q_len: Some(link.transmit_queue),
        }
    }

    /// Returns the changes that give a link these settings.
    fn changes(&self) -> Vec<LinkChange<'static>> {
        let changes = [
            self.mtu.map(LinkChange::Mtu),
            self.mac.map(LinkChange::Mac),
            self.promisc.map(LinkChange::Promiscuous),
            self.allmulti.map(LinkChange::AllMulticast),
            self.tx_q_len.map(LinkChange::TransmitQueue),
        ];
        changes.into_iter().flatten().collect()
    }

    /// Gives the interface the settings in `self`, and changes only those that differ. If the MAC
    /// changes, first turns on `arp_notify`, so that the kernel announces the MAC to the neighbours.
    pub(crate) fn apply(&self, connection: &Connection, interface: &str) -> Result<(), Error> {
        let found = Self::of(&connection.link(interface)?).changes();
        let missing = self.changes().into_iter().filter(|it| !found.contains(it));
        let missing: Vec<_> = missing.collect();
        let is_mac = |change: &LinkChange<'_>| matches!(change, LinkChange::Mac(_));
        let announced = missing.iter().any(is_mac).then_some(LinkChange::ArpNotify);
        let changes = announced.into_iter().chain(missing);
        let requests = changes.map(|change| Request::change_link(interface, &change));
        connection.execute(requests.collect::<Vec<_>>())
    }
}

#[expect(
    clippy::ref_option,
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it so"
)]
fn print_mac<S: Serializer>(mac: &Option<MacAddress>, serializer: S) -> Result<S::Ok, S::Error> {
    mac.map(|mac| mac.to_string()).serialize(serializer)
}

/// Parses a MAC. Returns `None` if there is none, or if the text is no Ethernet address: the Go
/// plugin also records link addresses of other kinds.
fn read_mac<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MacAddress>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}
