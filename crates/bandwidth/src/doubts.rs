//! Values that are probably mistakes.

use crate::raw::RawConfig;

/// Returns a message for each rate in the plugin's own keys that is so low that a packet takes longer
/// than a second. Its author probably meant another unit than bit/s.
pub fn doubts(own: &RawConfig) -> Vec<String> {
    let rates = [
        ("ingressRate", own.ingress_rate),
        ("egressRate", own.egress_rate),
    ];
    let rates = rates.iter().filter_map(|(key, rate)| Some((key, (*rate)?)));
    let low = rates.filter(|(_, rate)| (1..PACKET_BITS).contains(rate));
    let message = |(key, rate)| {
        let seconds = PACKET_BITS / rate;
        format!("{key} is {rate} bit/s: a packet of 1500 bytes takes {seconds} s")
    };
    low.map(message).collect()
}

/// Size of a packet of 1500 bytes in bits.
const PACKET_BITS: u64 = 1500 * 8;
