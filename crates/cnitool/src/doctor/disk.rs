//! Checks whether the file systems with leases have free space.

use node::{Disk, Node};

use super::finding::{Finding, quoted};

/// Reports for each file system with leases whether it is writable and has free space and inodes.
pub fn judge(node: &Node) -> Vec<Finding> {
    node.disks.iter().map(finding).collect()
}

fn finding(disk: &Disk) -> Finding {
    let directory = disk.directory.display();
    let place = quoted(&directory);
    let impact = "No lease can be written: every ADD fails.";
    if disk.is_read_only {
        let message = format!("{directory} is read-only");
        let fix = format!("mount -o remount,rw \"$(findmnt -no TARGET -T {place})\"");
        return Finding::problem(message).impact(impact).fix(fix);
    }
    let (bytes, files, is_limited) = (disk.bytes.0, disk.files.0, disk.files.1 > 0);
    let left = format!("{directory} has {} and {files} files left", size(bytes));
    let finding = if bytes < LEASE || (is_limited && files == 0) {
        Finding::problem(left).impact(impact)
    } else if [disk.bytes, disk.files]
        .iter()
        .any(|(left, all)| *left < all / 50)
    {
        let impact = "When it is full, no lease can be written and every ADD fails.";
        Finding::warning(left).impact(impact)
    } else {
        return Finding::ok(left);
    };
    finding.fix(format!("df -h {place}; df -i {place}"))
}

fn size(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mebibytes @ 1..=9999 => format!("{mebibytes} MiB"),
        mebibytes => format!("{} GiB", mebibytes >> 10),
    }
}

/// Disk space in bytes that a new lease takes: one block of 4 KiB for the lease's file, and one for
/// the attachment's file in the index of host-local.
const LEASE: u64 = 8 << 10;

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn space_and_inodes_are_looked_at() {
        let disk = |bytes, files, is_read_only| Disk {
            directory: "/var/lib/cni/networks".into(),
            bytes,
            files,
            is_read_only,
        };
        let (much, many) = ((1 << 30, 10 << 30), (1000, 10_000));
        for (disk, level) in [
            (disk(much, many, false), Level::Ok),
            (disk(much, (0, 0), false), Level::Ok),
            (disk((1 << 20, 10 << 30), many, false), Level::Warning),
            (disk(much, (10, 10_000), false), Level::Warning),
            (disk((4096, 10 << 30), many, false), Level::Problem),
            (disk(much, (0, 10_000), false), Level::Problem),
            (disk(much, many, true), Level::Problem),
        ] {
            assert_eq!(finding(&disk).level, level, "{disk:?}");
        }
    }
}
