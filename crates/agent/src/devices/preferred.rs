//! Chooses the devices of a resource that suit a container best.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use kubelet::device_plugin::ContainerPreferredAllocationRequest;

use super::resource::Kind;

/// Returns the IDs of the devices that suit the container best: first those that the request
/// requires, then the available ones with the lowest numbers. NUMA nodes play no role, because all
/// devices of a resource have the same NUMA node, or none.
///
/// # Errors
/// - An ID is not that of a device of this kind.
/// - `size` is less than the number of required devices, or more than the number of available ones.
/// - A required device is not available.
pub(crate) fn choose(
    kind: Kind,
    request: &ContainerPreferredAllocationRequest,
) -> anyhow::Result<Vec<String>> {
    let available = numbered(kind, &request.available)?;
    let included = numbered(kind, &request.must_include)?;
    let size = usize::try_from(request.size).context("the size is negative")?;
    ensure!(
        included.is_subset(&available),
        "a device that the answer must include is not available"
    );
    ensure!(
        (included.len()..=available.len()).contains(&size),
        "the size {size} is not from {}, which the answer must include, to {}, which are available",
        included.len(),
        available.len()
    );
    let others = available.difference(&included);
    let chosen = included.iter().chain(others).take(size);
    Ok(chosen.map(|(_, id)| (*id).to_owned()).collect())
}

fn numbered(kind: Kind, ids: &[String]) -> anyhow::Result<BTreeSet<(u32, &str)>> {
    let numbered = ids.iter().map(|id| {
        let number = kind.number(id);
        let number = number.with_context(|| format!("{id:?} is no device of this resource"))?;
        Ok((number, id.as_str()))
    });
    numbered.collect()
}

#[cfg(test)]
mod tests {
    use kubelet::device_plugin::ContainerPreferredAllocationRequest;

    use super::{Kind, choose};

    fn request(available: &[u32], must_include: &[u32], size: i32) -> anyhow::Result<Vec<String>> {
        let ids = |numbers: &[u32]| {
            let ids = numbers.iter().map(|it| format!("tun-{it:05}"));
            ids.collect::<Vec<_>>()
        };
        let request = ContainerPreferredAllocationRequest {
            available: ids(available),
            must_include: ids(must_include),
            size,
        };
        choose(Kind::Tun, &request)
    }

    #[test]
    fn included_devices_come_first_and_then_the_lowest_ones() {
        let chosen = request(&[9, 3, 5, 1, 7], &[7], 3).unwrap();
        assert_eq!(chosen, ["tun-00007", "tun-00001", "tun-00003"]);
    }

    #[test]
    fn a_device_named_twice_counts_once() {
        assert!(request(&[1, 1], &[], 2).is_err());
        assert_eq!(request(&[1, 1, 2], &[2, 2], 1).unwrap(), ["tun-00002"]);
    }

    #[test]
    fn impossible_sizes_and_foreign_devices_are_refused() {
        for (available, must_include, size) in [
            (&[1, 2][..], &[][..], 3),
            (&[1, 2], &[1, 2], 1),
            (&[1, 2], &[3], 1),
            (&[1, 2], &[], -1),
        ] {
            assert!(request(available, must_include, size).is_err());
        }
        let foreign = ContainerPreferredAllocationRequest {
            available: vec!["egress-00001".to_owned()],
            must_include: Vec::new(),
            size: 1,
        };
        assert!(choose(Kind::Tun, &foreign).is_err());
    }
}
